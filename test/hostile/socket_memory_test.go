package hostile

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"telapi/internal/ratelimit"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Sockets that never read what is replayed to them need little memory. The embedded
// store's memory contains the histories, 18 MB each, and no copy of them.
func TestUnreadReplaysNeedLittleMemory(t *testing.T) {
	onAllStores(t, nil, func(a *target) {
		tokens := make([]string, 2)
		for n := range tokens {
			_, tokens[n] = a.fullSession()
		}
		a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
			for n := range 2 * 29 { // one handshake of each session filled its history
				if _, resp, err := harness.Dial(a.T, a.instance, tokens[n%2], "?streamId=start"); err != nil {
					a.Fatalf("handshake %d: %v %s", n, err, harness.Body(resp))
				}
			}
		})
	})
}

func TestHandshakesOfSessionAreLimited(t *testing.T) {
	const limit = 3 // few, so that they fit into a minute on a busy machine
	i := harness.Start(t, harness.Env{"SESSION_MAX_HANDSHAKES_PER_MINUTE": fmt.Sprint(limit)})
	tenant := harness.NewTenant(t, i, "tenant")
	issue := func() (id, token string) {
		return harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	}
	id, token := issue()
	var last *harness.Browser
	for range limit {
		last = harness.Connect(t, i, id, token, "")
	}
	last.Expect(`"event":"ready"`)
	_, resp, err := harness.Dial(t, i, token, "")
	if err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("one more handshake: %v, %v; want 429", resp, err)
	}
	if body := harness.Body(resp); !strings.Contains(body, `"limit":"session_handshakes","max":3,"window":60`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more handshake: %s, want the limit and Retry-After", body)
	}
	if resp, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("plain GET: %d %s, want the reason of the handshake, 429", resp.StatusCode, body)
	}
	last.Expect(`"event":"ack"`, last.Chat("still here")) // the rejected handshake did not replace the socket
	other, otherToken := issue()
	harness.Connect(t, i, other, otherToken, "").Expect(`"event":"ready"`)
}

// Plain GETs count, even with a valid token, before the database is read.
func TestPlainSocketRequestsAreLimited(t *testing.T) {
	i := harness.Start(t, harness.Env{})
	tenant := harness.NewTenant(t, i, "tenant")
	_, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	const limit = 5
	err := i.App.Admin().Limits.Change(t.Context(), func(limits ratelimit.Limits) (ratelimit.Limits, error) {
		limits.Tiers.API = ratelimit.Limit{Max: limit, WindowMs: time.Hour.Milliseconds()}
		return limits, nil
	})
	testkit.Must(t, err)
	var last string
	testkit.Until(t, "the requests are limited", func() bool {
		resp, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token)
		last = body
		return resp.StatusCode == http.StatusTooManyRequests
	})
	if !strings.Contains(last, `"tier":"api"`) {
		t.Errorf("rejected with %s, want the tier api", last)
	}
}
