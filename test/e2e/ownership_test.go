package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// An instance replaces or rejects connections to sessions that another instance
// serves.
func TestSecondConnectionOnAnotherInstance(t *testing.T) {
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	other := svc.startPeer(t)

	t.Run("replaces the first", func(t *testing.T) {
		b, token, ch := svc.conversation(t)
		second := harness.Connect(t, other, b.Session, token, "")
		second.Expect(`"event":"ready"`)
		if code := b.CloseCode(); code != 4502 {
			t.Errorf("first connection: close code %d, want 4502", code)
		}
		checkConversation(t, second, ch)
	})
	t.Run("is rejected unless it names the first", func(t *testing.T) {
		id, token := svc.session(t, "duplicatePolicy", "reject")
		first := harness.Connect(t, svc.Instance, id, token, "")
		firstID := first.Expect(`"event":"ready"`).ConnectionID()
		ch := harness.Accept(t, harness.StartRuntime(t, svc.Instance))
		wantRejected(t, other, token, "", http.StatusConflict, "SESSION_IN_USE")
		wantRejected(t, other, token, "?connectionId="+uuid.NewString(), http.StatusConflict, "SESSION_IN_USE")
		for query, want := range map[string]int{"": http.StatusConflict, "?connectionId=" + firstID: http.StatusUpgradeRequired} {
			if resp, body := other.Call(t, http.MethodGet, "/ws/session"+query, "Authorization", "Bearer "+token); resp.StatusCode != want {
				t.Errorf("plain GET with %q: %d %s, want %d", query, resp.StatusCode, body, want)
			}
		}
		checkConversation(t, first, ch)

		second := harness.Connect(t, other, id, token, "?connectionId="+firstID)
		second.Expect(`"event":"ready"`)
		if code := first.CloseCode(); code != 4502 {
			t.Errorf("first connection: close code %d, want 4502", code)
		}
		wantRejected(t, svc.Instance, token, "?connectionId="+firstID, http.StatusConflict, "SESSION_IN_USE")
		checkConversation(t, second, ch)

		_ = second.Conn.Close()
		testkit.Until(t, "a new connection is accepted after the close", func() bool {
			conn, _, err := harness.Dial(t, svc.Instance, token, "")
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	})
}

// A handshake with invalid WebSocket headers is rejected and does not replace the
// owner.
func TestInvalidUpgradeKeepsOwner(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, token, ch := svc.conversation(t)
	for name, headers := range map[string][]string{
		"no key":      {"Sec-WebSocket-Version", "13"},
		"old version": {"Sec-WebSocket-Version", "8", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="},
		"short key":   {"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "c2hvcnQ="},
	} {
		headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket", "Authorization", "Bearer "+token)
		resp, body := svc.Call(t, http.MethodGet, "/ws/session", headers...)
		if resp.StatusCode != http.StatusUpgradeRequired || !strings.Contains(body, `"code":"UPGRADE_REQUIRED"`) || resp.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s: %d %s, want 426 and the supported version", name, resp.StatusCode, body)
		}
	}
	if resp, _ := svc.Call(t, http.MethodHead, "/ws/session", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==",
		"Connection", "Upgrade", "Upgrade", "websocket", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("HEAD: status %d, want 426", resp.StatusCode)
	}
	checkConversation(t, b, ch)
}
