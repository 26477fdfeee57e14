package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
)

// issueToken asks for a session and returns its id and token.
func issueToken(t *testing.T, i *boot.Instance, key string, body map[string]any) (id, token string) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", i.URL+"/api/v1/sessions/token", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := i.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	var v struct{ SessionID, Token string }
	if err := json.Unmarshal(answer, &v); err != nil || resp.StatusCode != 201 {
		t.Fatalf("POST /api/v1/sessions/token: %d %s", resp.StatusCode, answer)
	}
	return v.SessionID, v.Token
}

// browser is one socket of a session.
type browser struct {
	t       *testing.T
	conn    *websocket.Conn
	session string
}

// dial opens a socket; query is what follows ws/session.
func dial(t *testing.T, i *boot.Instance, token, query string) (*browser, *http.Response, error) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}, HandshakeTimeout: 10 * time.Second}
	conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(i.URL, "http")+"/ws/session"+query, nil)
	if err != nil {
		return nil, resp, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &browser{t: t, conn: conn}, resp, nil
}

func connect(t *testing.T, i *boot.Instance, session, token, query string) *browser {
	t.Helper()
	b, resp, err := dial(t, i, token, query)
	if err != nil {
		body := ""
		if resp != nil {
			raw, _ := io.ReadAll(resp.Body)
			body = string(raw)
		}
		t.Fatalf("open a socket: %v %s", err, body)
	}
	b.session = session
	return b
}

type received struct {
	wire.ChannelMessage
	raw string
}

// read returns the next frame.
func (b *browser) read() (received, error) {
	_ = b.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, raw, err := b.conn.ReadMessage()
	if err != nil {
		return received{}, err
	}
	var m received
	m.raw = string(raw)
	return m, json.Unmarshal(raw, &m.ChannelMessage)
}

func (b *browser) next() received {
	b.t.Helper()
	m, err := b.read()
	if err != nil {
		b.t.Fatalf("read a frame: %v", err)
	}
	return m
}

// expect reads a frame that must hold all of the parts.
func (b *browser) expect(parts ...string) received {
	b.t.Helper()
	m := b.next()
	for _, p := range parts {
		if !strings.Contains(m.raw, p) {
			b.t.Fatalf("frame %s lacks %s", m.raw, p)
		}
	}
	return m
}

// closeCode reads up to the close frame.
func (b *browser) closeCode() int {
	b.t.Helper()
	for {
		_, err := b.read()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			return closed.Code
		}
		if err != nil {
			b.t.Fatalf("the socket ended without a code: %v", err)
		}
	}
}

// send writes a frame and returns its message id.
func (b *browser) send(kind, object, payload string) string {
	b.t.Helper()
	id := uuid.NewString()
	b.write(fmt.Sprintf(`{"type":%q,"sessionId":%q,"messageId":%q,"timestamp":%d,"direction":"to_ari",%q:%s}`,
		kind, b.session, id, time.Now().UnixMilli(), object, payload))
	return id
}

func (b *browser) write(frame string) {
	b.t.Helper()
	if err := b.conn.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
		b.t.Fatalf("write a frame: %v", err)
	}
}

func (b *browser) chat(text string) string {
	b.t.Helper()
	return b.send("chat", "chat", fmt.Sprintf(`{"text":%q}`, text))
}

// runtime is a call runtime on the stores of an environment.
func startRuntime(t *testing.T, env boot.Env) *callruntime.Runtime {
	t.Helper()
	where, err := callruntime.Locate(env["REDIS_URL"], env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	r, err := callruntime.New(callruntime.Options{Store: where, Name: "runtime-" + uuid.NewString()[:8]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// withDataDir gives an environment a data folder that others can join.
func withDataDir(t *testing.T, env boot.Env) boot.Env {
	if env["DATA_DIR"] == "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return env
}
