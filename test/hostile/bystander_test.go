package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// bystander is a client that uses the service as intended: it checks the health and sends
// frames. Each must succeed, in whatever time a busy machine needs. One outage is tolerated:
// a machine without a processor for two seconds lets the instance's probe of a store time out.
type bystander struct {
	target         *target
	session, token string
	served         atomic.Int64 // times
}

// startBystander starts a bystander. stop ends it, after it was served once more.
func (a *target) startBystander() (stop func()) {
	a.Helper()
	b := &bystander{target: a}
	b.session, b.token = a.sessionOf(a.other)
	ctx, cancel := context.WithCancel(a.Context())
	var running sync.WaitGroup
	running.Go(func() {
		err := b.run(ctx)
		if ctx.Err() == nil {
			a.Logf("bystander: %v; it connects again", err)
			for ctx.Err() == nil && checkHealth(b.url()) != nil {
				time.Sleep(100 * time.Millisecond)
			}
			err = b.run(ctx)
		}
		if ctx.Err() == nil {
			a.Errorf("bystander: %v", err)
			cancel()
		}
	})
	wait := func() {
		before := b.served.Load()
		testkit.Until(a, "a bystander is served", func() bool { return b.served.Load() > before || ctx.Err() != nil })
	}
	wait()
	return func() {
		wait()
		cancel()
		running.Wait()
	}
}

func (b *bystander) url() string { return b.target.instance.URL }

// run ends with an error, or if ctx ends.
func (b *bystander) run(ctx context.Context) error {
	dialer := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + b.token}, HandshakeTimeout: testkit.Timeout}
	conn, _, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(b.url(), "http")+"/ws/session", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, _, err := conn.ReadMessage(); err != nil { // ready
		return err
	}
	pace := time.NewTicker(25 * time.Millisecond) // slower than the limit of a connection
	defer pace.Stop()
	for ; ctx.Err() == nil; b.served.Add(1) {
		<-pace.C
		if err := checkHealth(b.url()); err != nil {
			return err
		}
		id := uuid.NewString()
		frame := harness.Frame("chat", b.session, id, "chat", `{"text":"hello"}`)
		err := errors.Join(conn.SetReadDeadline(time.Now().Add(testkit.Timeout)), conn.WriteMessage(websocket.TextMessage, []byte(frame)))
		if err != nil {
			return err
		}
		if _, ack, err := conn.ReadMessage(); err != nil || !strings.Contains(string(ack), id) {
			return fmt.Errorf("received %s, %w; want the acknowledgement of %s", ack, err, id)
		}
	}
	return nil
}

// checkHealth opens a connection, as load balancers do for every check.
func checkHealth(url string) error {
	checker := http.Client{Timeout: testkit.Timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := checker.Get(url + "/health")
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /health: status %d, want 200", resp.StatusCode)
	}
	return nil
}
