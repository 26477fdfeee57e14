package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"telapi/callruntime"
	"telapi/test/harness"
)

// service is an instance with a tenant.
type service struct {
	*harness.Instance
	harness.Tenant
	env harness.Env
}

// startService starts an instance with the given settings.
func startService(t *testing.T, env harness.Env) *service {
	t.Helper()
	env = harness.WithDataDir(t, harness.Merge(env))
	i, tenant := startTenant(t, env)
	return &service{i, tenant, env}
}

// startPeer starts a second instance on the same stores.
func (svc *service) startPeer(t *testing.T) *harness.Instance {
	env := maps.Clone(svc.env)
	env["DATA_DIR"] = t.TempDir()
	return harness.Start(t, env)
}

// serve starts an instance as a separate process. With real stores it gets its own
// data directory.
func serve(t *testing.T, env harness.Env) (*harness.Instance, *harness.Process) {
	t.Helper()
	env = harness.Merge(harness.Env{"LOG_LEVEL": "warn"}, env)
	if env["REDIS_URL"] != "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return harness.Serve(t, env)
}

func (svc *service) session(t *testing.T, options ...any) (id, token string) {
	t.Helper()
	return svc.Tenant.Session(t, svc.Instance, options...)
}

func (svc *service) connect(t *testing.T, options ...any) (b *harness.Browser, token string) {
	t.Helper()
	return svc.Tenant.Connect(t, svc.Instance, options...)
}

// conversation creates a session and returns both ends of it.
func (svc *service) conversation(t *testing.T, options ...any) (*harness.Browser, string, *callruntime.Channel) {
	t.Helper()
	b, token := svc.connect(t, options...)
	return b, token, harness.Accept(t, harness.StartRuntime(t, svc.Instance))
}

// afterLoss waits until the runtime is notified that the store has lost data. If the runtime
// had noticed before the browser came back, another one accepts the session.
func (svc *service) afterLoss(t *testing.T, ch *callruntime.Channel) *callruntime.Channel {
	t.Helper()
	for {
		_, err := ch.Receive(t.Context())
		switch {
		case errors.Is(err, callruntime.ErrLost):
			return ch
		case errors.Is(err, callruntime.ErrClaimLost):
			return harness.Accept(t, harness.StartRuntime(t, svc.Instance))
		case err != nil:
			t.Fatalf("runtime: %v, want ErrLost or ErrClaimLost", err)
		}
	}
}

// hasMetric returns whether /metrics contains the line.
func hasMetric(t *testing.T, i *harness.Instance, line string) bool {
	t.Helper()
	_, body := i.Call(t, http.MethodGet, "/metrics")
	return strings.Contains(body, line)
}

// wantRejected checks that a handshake fails with the given status and error code.
func wantRejected(t *testing.T, i *harness.Instance, token, query string, status int, code string) {
	t.Helper()
	_, resp, err := harness.Dial(t, i, token, query)
	body := harness.Body(resp)
	if err == nil || resp == nil || resp.StatusCode != status || !strings.Contains(body, `"`+code+`"`) {
		t.Errorf("handshake: %v %s, want %d %s", err, body, status, code)
	}
}

// sendNumbered sends numbered messages and returns the cursors that the browser
// received.
func sendNumbered(t *testing.T, b *harness.Browser, ch *callruntime.Channel, from, to int) (cursors []string) {
	t.Helper()
	for n := from; n <= to; n++ {
		harness.SendChat(t, ch, fmt.Sprintf(`{"n":%d}`, n))
		cursors = append(cursors, b.Expect(fmt.Sprintf(`{"n":%d}`, n)).StreamID)
	}
	return cursors
}

// checkConversation checks that both directions work and that no other frame is
// pending.
func checkConversation(t *testing.T, b *harness.Browser, ch *callruntime.Channel) {
	t.Helper()
	id := b.Chat("still here")
	b.Expect(`"event":"ack"`, id)
	for harness.Receive(t, ch).Message == nil { // skips connected and disconnected
	}
	harness.SendChat(t, ch, `{"text":"here too"}`)
	b.Expect("here too")
}
