// Package talk holds both ends of a conversation as tests have them: a page with
// a token and a socket, and a call runtime.
package talk

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

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/test/boot"
	"telapi/test/contract"
)

// patience is how long a frame may take to come.
const patience = 20 * time.Second

// Issue asks for a session and returns its id and token.
func Issue(t testing.TB, i *boot.Instance, key string, body map[string]any) (id, token string) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.URL+"/api/v1/sessions/token", strings.NewReader(string(raw)))
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
	if err := json.Unmarshal(answer, &v); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("POST /api/v1/sessions/token: %d %s", resp.StatusCode, answer)
	}
	return v.SessionID, v.Token
}

// Browser is one socket of a session.
type Browser struct {
	Conn    *websocket.Conn
	Session string
	T       testing.TB
}

// Dial opens a socket as a page does; query is what follows ws/session.
func Dial(t testing.TB, i *boot.Instance, token, query string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}, HandshakeTimeout: patience}
	conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(i.URL, "http")+"/ws/session"+query, nil)
	if resp != nil {
		contract.CheckResponse(t, resp)
	}
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, resp, err
}

// Connect is Dial for sockets that must open.
func Connect(t testing.TB, i *boot.Instance, session, token, query string) *Browser {
	t.Helper()
	conn, resp, err := Dial(t, i, token, query)
	if err != nil {
		t.Fatalf("open a socket: %v %s", err, Body(resp))
	}
	return &Browser{Conn: conn, Session: session, T: t}
}

// Body is the answer to a handshake that was refused.
func Body(resp *http.Response) string {
	if resp == nil {
		return ""
	}
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

// Received is a frame that came.
type Received struct {
	wire.ChannelMessage
	Raw string
}

// Read returns the next frame.
func (b *Browser) Read() (Received, error) {
	_ = b.Conn.SetReadDeadline(time.Now().Add(patience))
	_, raw, err := b.Conn.ReadMessage()
	if err != nil {
		return Received{}, err
	}
	contract.CheckFrame(b.T, contract.Send, raw)
	m := Received{Raw: string(raw)}
	return m, json.Unmarshal(raw, &m.ChannelMessage)
}

// Next is Read for frames that must come.
func (b *Browser) Next() Received {
	b.T.Helper()
	m, err := b.Read()
	if err != nil {
		b.T.Fatalf("read a frame: %v", err)
	}
	return m
}

// Expect reads a frame that must hold all of the parts.
func (b *Browser) Expect(parts ...string) Received {
	b.T.Helper()
	m := b.Next()
	for _, p := range parts {
		if !strings.Contains(m.Raw, p) {
			b.T.Fatalf("frame %s lacks %s", m.Raw, p)
		}
	}
	return m
}

// CloseCode reads up to the close frame.
func (b *Browser) CloseCode() int {
	b.T.Helper()
	for {
		_, err := b.Read()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			return closed.Code
		}
		if err != nil {
			b.T.Fatalf("the socket ended without a code: %v", err)
		}
	}
}

// Send writes a frame and returns its message id.
func (b *Browser) Send(kind, object, payload string) string {
	b.T.Helper()
	id := uuid.NewString()
	b.Write(Frame(kind, b.Session, id, object, payload))
	return id
}

// Frame is a browser's frame.
func Frame(kind, session, id, object, payload string) string {
	return fmt.Sprintf(`{"type":%q,"sessionId":%q,"messageId":%q,"timestamp":%d,"direction":"to_ari",%q:%s}`,
		kind, session, id, time.Now().UnixMilli(), object, payload)
}

// Write sends a text frame as it is.
func (b *Browser) Write(frame string) {
	b.T.Helper()
	if _, err := channel.ParseFrame([]byte(frame), b.Session); err == nil {
		contract.CheckFrame(b.T, contract.Receive, []byte(frame))
	}
	if err := b.Conn.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
		b.T.Fatalf("write a frame: %v", err)
	}
}

// Chat sends a text and returns its message id.
func (b *Browser) Chat(text string) string {
	b.T.Helper()
	return b.Send("chat", "chat", fmt.Sprintf(`{"text":%q}`, text))
}

// Cut ends the socket as a lost network does: without a word.
func (b *Browser) Cut() { _ = b.Conn.NetConn().Close() }

// ReadyStreamID is the position that a ready frame names.
func (m Received) ReadyStreamID() string { return m.ready().StreamID }

// ConnectionID is the connection that a ready frame names.
func (m Received) ConnectionID() string { return m.ready().ConnectionID }

func (m Received) ready() (status struct{ StreamID, ConnectionID string }) {
	_ = json.Unmarshal(m.Status, &status)
	return status
}
