package faults

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// sendControl sends a control message to the browser.
func sendControl(t *testing.T, ch *calls.Channel, command string) {
	t.Helper()
	if err := ch.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeControl, Control: []byte(`{"command":"` + command + `"}`)}); err != nil {
		t.Fatal(err)
	}
}

// Both sides can disable text chat. A browser cannot enable it again after the
// runtime has disabled it.
func TestRuntimeOverridesTextChatSetting(t *testing.T) {
	onEmbeddedAndReal(t, nil, func(t *testing.T, svc *service) {
		b, token, ch := svc.conversation(t)
		chat := func(allowed bool) {
			t.Helper()
			id := b.Chat("may I?")
			if allowed {
				b.Expect(`"event":"ack"`, id)
			} else {
				b.Expect(`"type":"error"`, `"code":"TEXT_CHAT_DISABLED"`, `"relatesTo":"`+id)
			}
		}
		browser := func(command string) {
			t.Helper()
			b.Expect(`"event":"ack"`, b.Send("control", "control", `{"command":"`+command+`"}`))
		}
		runtime := func(command string) {
			t.Helper()
			sendControl(t, ch, command)
			b.Expect(`"type":"control"`, command)
		}
		chat(true)
		browser("disable_text_chat")
		chat(false)
		browser("enable_text_chat")
		chat(true)
		runtime("disable_text_chat")
		chat(false)
		browser("enable_text_chat")
		chat(false)
		b.Expect(`"event":"ack"`, b.Send("browser_action", "browserAction", `{"type":"click"}`)) // only chat is disabled

		b.Cut()
		b = harness.Connect(t, svc.Instance, b.Session, token, "")
		b.Expect(`"event":"ready"`, `"textChat":false`)
		chat(false)
		runtime("enable_text_chat")
		chat(true)
		browser("disable_text_chat")
		runtime("enable_text_chat") // overrides the browser's setting
		chat(true)
		browser("mute") // unknown commands are passed to the runtime
		for {
			if e := harness.Receive(t, ch); e.Message != nil && strings.Contains(string(e.Message.Control), "mute") {
				break
			}
		}
	})
}

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
		ch := harness.Accept(t, harness.StartRuntime(t, svc.env))
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

// When several connections are opened at the same time, on different instances,
// one becomes the owner and all others are closed with 4502.
func TestConcurrentConnectionsLeaveOneOwner(t *testing.T) {
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	instances := []*harness.Instance{svc.Instance, svc.startPeer(t)}
	for range 20 {
		id, token := svc.session(t)
		var browsers [4]*harness.Browser
		var dialing sync.WaitGroup
		for i := range browsers {
			dialing.Go(func() {
				conn, resp, err := harness.Dial(t, instances[i%2], token, "")
				if err != nil {
					t.Error(err, harness.Body(resp))
					return
				}
				browsers[i] = &harness.Browser{Conn: conn, Session: id, T: t}
			})
		}
		if dialing.Wait(); t.Failed() {
			return
		}
		replaced, events := make(chan int, len(browsers)), make(chan string, len(browsers))
		for i, b := range browsers {
			go func() {
				for {
					m, err := b.Read()
					switch {
					case websocket.IsCloseError(err, 4502):
						replaced <- i
						return
					case err != nil:
						events <- err.Error()
						return
					case strings.Contains(m.Raw, `"event":"ack"`):
						events <- "ack"
					}
				}
			}()
		}
		for range len(browsers) - 1 {
			select {
			case i := <-replaced:
				browsers[i] = nil
			case event := <-events:
				t.Fatalf("a connection got %s, want close code 4502", event)
			}
		}
		for _, b := range browsers {
			if b != nil {
				b.Chat("still here")
			}
		}
		select {
		case <-replaced:
			t.Fatal("all connections were replaced")
		case event := <-events:
			if event != "ack" {
				t.Fatalf("the owner got %s, want an ack", event)
			}
		}
	}
}

// A handshake with invalid WebSocket headers is rejected and does not replace the
// owner.
func TestInvalidUpgradeKeepsOwner(t *testing.T) {
	onEmbeddedAndReal(t, nil, func(t *testing.T, svc *service) {
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
	})
}
