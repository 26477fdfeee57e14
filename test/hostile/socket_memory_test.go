package hostile

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"telapi/internal/ratelimit"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// maxResident is the resident memory that no attack may exceed.
const maxResident = 250 << 20

// victim is the built binary with default limits, and a tenant.
type victim struct {
	*boot.Instance
	process *boot.Process
	env     boot.Env
	tenant  boot.Tenant
}

// startVictim starts a victim on real stores. Another instance creates the tenant.
func startVictim(t *testing.T, env boot.Env) *victim {
	t.Helper()
	stores, _ := boot.RealStores(t)
	v := &victim{env: boot.Merge(stores, env)}
	v.tenant = boot.NewTenant(t, boot.Start(t, stores), "tenant")
	v.Instance, v.process = boot.Serve(t, v.env)
	return v
}

func (v *victim) session(t *testing.T) (id, token string) {
	t.Helper()
	return talk.Issue(t, v.Instance, v.tenant.Key, map[string]any{"endpointId": v.tenant.Endpoint.ID, "mode": "chat"})
}

// fullSession creates a session whose history has the maximum size.
func (v *victim) fullSession(t *testing.T) (id, token string) {
	t.Helper()
	id, token = v.session(t)
	b := talk.Connect(t, v.Instance, id, token, "")
	b.Expect(`"event":"ready"`)
	ch := talk.Accept(t, talk.StartRuntime(t, v.env))
	b.Cut()
	text := strings.Repeat("x", 60<<10)
	for range 300 {
		talk.SendChat(t, ch, fmt.Sprintf(`{"text":%q}`, text))
	}
	return id, token
}

// maxResidentBytes returns the maximum of the resident memory of the process so far.
func (v *victim) maxResidentBytes(t *testing.T) (bytes int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.process.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscanf(rest, "%d kB", &bytes); err != nil {
		t.Fatalf("read VmHWM: %v", err)
	}
	return bytes << 10
}

// Sockets that never read what is replayed to them need little memory.
func TestUnreadReplaysNeedLittleMemory(t *testing.T) {
	v := startVictim(t, nil)
	for range 2 {
		_, token := v.fullSession(t)
		for n := range 29 { // one handshake filled the history
			if _, resp, err := talk.Dial(t, v.Instance, token, "?streamId=start"); err != nil {
				t.Fatalf("handshake %d: %v %s", n, err, talk.Body(resp))
			}
		}
	}
	if got := v.maxResidentBytes(t); got > maxResident {
		t.Errorf("%d MB resident, want at most %d", got>>20, int64(maxResident)>>20)
	}
}

func TestHandshakesOfSessionAreLimited(t *testing.T) {
	const limit = 3 // few, so that they fit into a minute on a busy machine
	i := boot.Start(t, boot.Env{"SESSION_MAX_HANDSHAKES_PER_MINUTE": fmt.Sprint(limit)})
	tenant := boot.NewTenant(t, i, "tenant")
	issue := func() (id, token string) {
		return talk.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	}
	id, token := issue()
	var last *talk.Browser
	for range limit {
		last = talk.Connect(t, i, id, token, "")
	}
	last.Expect(`"event":"ready"`)
	_, resp, err := talk.Dial(t, i, token, "")
	if err == nil || resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("one more handshake: %v, %v; want 429", resp, err)
	}
	if body := talk.Body(resp); !strings.Contains(body, `"limit":"session_handshakes","max":3,"window":60`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more handshake: %s, want the limit and Retry-After", body)
	}
	if resp, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("plain GET: %d %s, want the reason of the handshake, 429", resp.StatusCode, body)
	}
	last.Expect(`"event":"ack"`, last.Chat("still here")) // the refused handshake did not replace the socket
	other, otherToken := issue()
	talk.Connect(t, i, other, otherToken, "").Expect(`"event":"ready"`)
}

// Plain GETs count, even with a valid token, before the database is read.
func TestPlainSocketRequestsAreLimited(t *testing.T) {
	i := boot.Start(t, boot.Env{})
	tenant := boot.NewTenant(t, i, "tenant")
	_, token := talk.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	const limit = 5
	err := i.App.Admin().Limits.Change(t.Context(), func(limits ratelimit.Limits) (ratelimit.Limits, error) {
		return limits.With(ratelimit.API, ratelimit.Limit{Max: limit, WindowMs: time.Hour.Milliseconds()})
	})
	if err != nil {
		t.Fatal(err)
	}
	var last string
	poll.Until(t, "the requests are limited", func() bool {
		resp, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token)
		last = body
		return resp.StatusCode == http.StatusTooManyRequests
	})
	if !strings.Contains(last, `"tier":"api"`) {
		t.Errorf("refused with %s, want the tier api", last)
	}
}
