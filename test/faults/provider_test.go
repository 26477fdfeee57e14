package faults

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// provider posts callbacks as docs/providers.md describes, to several instances in
// turn.
type provider struct {
	client *http.Client
	urls   []string
}

// newProvider raises the rate limit, because all callbacks come from one address.
func newProvider(t *testing.T, env harness.Env, instances ...*harness.Instance) *provider {
	t.Helper()
	set := harness.StartProcess(t, env, "limits", "set", "--tier", "webhook", "--max", "1000000", "--window", "1m")
	if code := set.WaitExit(t); code != 0 {
		t.Fatalf("telapi limits set: exit code %d, want 0", code)
	}
	p := &provider{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: testkit.Timeout}}
	t.Cleanup(p.client.CloseIdleConnections)
	for n, i := range instances {
		p.urls = append(p.urls, i.URL)
		testkit.Until(t, "the limit applies", func() bool {
			resp, _, err := p.post(t.Context(), n, "/api/v1/webhooks/bot/x", "x", "{}")
			return err == nil && strings.Contains(resp.Header.Get("RateLimit-Policy"), "q=1000000")
		})
	}
	return p
}

func (p *provider) post(ctx context.Context, to int, path, token, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.urls[to%len(p.urls)]+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("token", token)
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	receipt, err := io.ReadAll(resp.Body)
	return resp, string(receipt), err
}

// postCallback posts a callback once.
func (p *provider) postCallback(ctx context.Context, to int, channelID string, item calls.WorkItem) (*http.Response, string, error) {
	return p.post(ctx, to, item.Path, item.Token,
		fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]}}`, channelID, item.ID))
}

// postCallbackWithRetry posts a callback until it is accepted and returns the number of
// requests.
func (p *provider) postCallbackWithRetry(ctx context.Context, to int, channelID string, item calls.WorkItem) (tries int, err error) {
	for tries = 1; ; tries++ {
		resp, body, err := p.postCallback(ctx, to+tries, channelID, item)
		switch {
		case ctx.Err() != nil:
			return tries, ctx.Err()
		case err != nil: // no response: retry
		case resp.StatusCode == http.StatusAccepted, tries > 1 && isDuplicate(resp, body):
			return tries, nil
		case resp.StatusCode == http.StatusServiceUnavailable:
			seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil {
				return tries, fmt.Errorf("503 without Retry-After: %w", err)
			}
			select {
			case <-time.After(time.Duration(seconds) * time.Second):
			case <-ctx.Done():
			}
		default:
			return tries, fmt.Errorf("callback: %d %s, want 202, 503 or a duplicate after a retry", resp.StatusCode, body)
		}
	}
}

func isDuplicate(resp *http.Response, body string) bool {
	return resp.StatusCode == http.StatusConflict && strings.Contains(body, `"duplicate":true`)
}

// openCall opens a channel without a browser.
func openCall(t *testing.T, r *calls.Runtime, id string) *calls.Channel {
	t.Helper()
	c, err := r.Open(t.Context(), calls.OpenOptions{ChannelID: id, TeamID: "tm_1", EndpointID: "ep_1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
