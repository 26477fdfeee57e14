package faults

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

func control(t *testing.T, ch *callruntime.Channel, command string) {
	t.Helper()
	if err := ch.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeControl, Control: []byte(`{"command":"` + command + `"}`)}); err != nil {
		t.Fatal(err)
	}
}

// Either side may switch text chat off; what the runtime has switched off, the
// browser cannot switch on.
func TestRuntimeOverridesTextChatSetting(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, token, ch := p.conversation(t)
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
			control(t, ch, command)
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
		b.Expect(`"event":"ack"`, b.Send("browser_action", "browserAction", `{"type":"click"}`)) // chat alone is off

		b.Cut()
		b = talk.Connect(t, p.Instance, b.Session, token, "")
		b.Expect(`"event":"ready"`, `"textChat":false`)
		chat(false)
		runtime("enable_text_chat")
		chat(true)
		browser("disable_text_chat")
		runtime("enable_text_chat") // also over the browser's own
		chat(true)
		browser("mute") // passes through
		for {
			if e := talk.Receive(t, ch); e.Message != nil && strings.Contains(string(e.Message.Control), "mute") {
				break
			}
		}
	})
}

// Two instances know of each other's sockets.
func TestSecondConnectionOnAnotherInstance(t *testing.T) {
	env, _ := realStores(t)
	p := newPlace(t, env)
	other := p.twin(t)

	t.Run("replaces the first", func(t *testing.T) {
		b, token, ch := p.conversation(t)
		second := talk.Connect(t, other, b.Session, token, "")
		second.Expect(`"event":"ready"`)
		if code := b.CloseCode(); code != 4502 {
			t.Errorf("the first was closed with %d", code)
		}
		goesOn(t, second, ch)
	})
	t.Run("is refused, unless it names the first", func(t *testing.T) {
		id, token := p.session(t, "duplicatePolicy", "reject")
		first := talk.Connect(t, p.Instance, id, token, "")
		name := first.Expect(`"event":"ready"`).ConnectionID()
		ch := talk.Accept(t, talk.StartRuntime(t, p.env))
		refused(t, other, token, "", http.StatusConflict, "SESSION_IN_USE")
		refused(t, other, token, "?connectionId="+uuid.NewString(), http.StatusConflict, "SESSION_IN_USE")
		for query, want := range map[string]int{"": http.StatusConflict, "?connectionId=" + name: http.StatusUpgradeRequired} {
			if status, _, body := ask(t, other, http.MethodGet, "/ws/session"+query, "Authorization", "Bearer "+token); status != want {
				t.Errorf("a page that asks with %q is told %d %s", query, status, body)
			}
		}
		goesOn(t, first, ch)

		second := talk.Connect(t, other, id, token, "?connectionId="+name)
		second.Expect(`"event":"ready"`)
		if code := first.CloseCode(); code != 4502 {
			t.Errorf("the first was closed with %d", code)
		}
		refused(t, p.Instance, token, "?connectionId="+name, http.StatusConflict, "SESSION_IN_USE")
		goesOn(t, second, ch)

		_ = second.Conn.Close()
		poll.Until(t, "a closed connection makes room", func() bool {
			conn, _, err := talk.Dial(t, p.Instance, token, "")
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	})
}

// Of connections that come at the same moment, to any instance, one has the
// session and all others are told so.
func TestConcurrentConnectionsLeaveOneOwner(t *testing.T) {
	env, _ := realStores(t)
	p := newPlace(t, env)
	at := []*boot.Instance{p.Instance, p.twin(t)}
	for range 20 {
		id, token := p.session(t)
		var all [4]*talk.Browser
		var dialling sync.WaitGroup
		for i := range all {
			dialling.Go(func() {
				conn, resp, err := talk.Dial(t, at[i%2], token, "")
				if err != nil {
					t.Error(err, talk.Body(resp))
					return
				}
				all[i] = &talk.Browser{Conn: conn, Session: id, T: t}
			})
		}
		if dialling.Wait(); t.Failed() {
			return
		}
		ended, heard := make(chan int, len(all)), make(chan string, len(all))
		for i, b := range all {
			go func() {
				for {
					m, err := b.Read()
					switch {
					case websocket.IsCloseError(err, 4502):
						ended <- i
						return
					case err != nil:
						heard <- err.Error()
						return
					case strings.Contains(m.Raw, `"event":"ack"`):
						heard <- "ack"
					}
				}
			}()
		}
		for range len(all) - 1 {
			select {
			case i := <-ended:
				all[i] = nil
			case what := <-heard:
				t.Fatalf("of the connections that are over one got %s", what)
			}
		}
		for _, b := range all {
			if b != nil {
				b.Chat("still here")
			}
		}
		select {
		case <-ended:
			t.Fatal("no connection stayed")
		case what := <-heard:
			if what != "ack" {
				t.Fatalf("the connection that stayed got %s", what)
			}
		}
	}
}

// A handshake that cannot become a socket is refused like any other, and takes
// the session from nobody.
func TestInvalidUpgradeKeepsOwner(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, token, ch := p.conversation(t)
		for name, headers := range map[string][]string{
			"no key":      {"Sec-WebSocket-Version", "13"},
			"old version": {"Sec-WebSocket-Version", "8", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="},
			"short key":   {"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "c2hvcnQ="},
		} {
			headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket", "Authorization", "Bearer "+token)
			status, header, body := ask(t, p.Instance, http.MethodGet, "/ws/session", headers...)
			if status != http.StatusUpgradeRequired || !strings.Contains(body, `"code":"UPGRADE_REQUIRED"`) || header.Get("Sec-WebSocket-Version") != "13" {
				t.Errorf("%s: %d %s", name, status, body)
			}
		}
		if status, _, _ := ask(t, p.Instance, http.MethodHead, "/ws/session", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==",
			"Connection", "Upgrade", "Upgrade", "websocket", "Authorization", "Bearer "+token); status != http.StatusUpgradeRequired {
			t.Errorf("HEAD: %d", status)
		}
		goesOn(t, b, ch)
	})
}
