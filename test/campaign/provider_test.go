package campaign

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"telapi/internal/background"
)

// usualDelay is the maximum delay of an answer, unless a fault increases it.
const usualDelay = 20 * time.Millisecond

// provider answers work items. It retries a callback until its outcome is known.
type provider struct {
	url      string
	client   *http.Client
	ledger   *ledger
	running  sync.WaitGroup
	slots    chan struct{} // limits concurrent requests
	maxDelay atomic.Int64  // of answers, as a time.Duration

	mu      sync.Mutex
	tokens  map[string]string // newest credential of each operation
	posting map[string]bool   // operations with a callback under way
}

func newProvider(url string, client *http.Client, l *ledger) *provider {
	p := &provider{url: url, client: client, ledger: l, slots: make(chan struct{}, 64), tokens: map[string]string{}, posting: map[string]bool{}}
	p.maxDelay.Store(int64(usualDelay))
	return p
}

// answer posts a callback in the background. If a runtime requests the answer again,
// the newest credential is used.
func (p *provider) answer(ctx context.Context, id, session, token, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[id] = token
	if p.posting[id] {
		return
	}
	p.posting[id] = true
	p.running.Go(func() {
		// Callbacks overtake each other.
		delay := time.Duration(rand.Int64N(p.maxDelay.Load()))
		for attempt := 0; pause(ctx, delay) && !p.post(ctx, id, session, path); attempt++ {
			delay = rand.N(200 * time.Millisecond << min(attempt, 5))
		}
	})
}

// post sends a callback once. It reports whether the outcome is known and no newer
// credential has to be used.
func (p *provider) post(ctx context.Context, id, session, path string) (done bool) {
	p.slots <- struct{}{}
	defer func() { <-p.slots }()
	p.mu.Lock()
	token := p.tokens[id]
	p.mu.Unlock()
	status, body, err := p.send(ctx, session, token, path, id)
	switch {
	case err != nil, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return false
	case status == http.StatusAccepted, status == http.StatusConflict && strings.Contains(body, `"duplicate":true`):
		p.ledger.update(id, func(o *operation) { o.callback.acknowledged = true })
	default: // the ledger counts the work item as lost if its credential stays invalid
		p.ledger.note("callback: %d", status)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tokens[id] != token {
		return false
	}
	delete(p.posting, id)
	return true
}

func (p *provider) send(ctx context.Context, session, token, path, text string) (status int, body string, err error) {
	request := fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]}}`, session, text)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(request))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("token", token)
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), err
}

// pause waits and reports whether the context is still valid.
func pause(ctx context.Context, d time.Duration) bool { return background.Sleep(ctx, d) == nil }
