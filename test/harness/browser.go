package harness

import (
	"encoding/binary"
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
	"telapi/test/contract"
	"telapi/test/testkit"
)

// Issue creates a session and returns its ID and token.
func Issue(t testing.TB, i *Instance, key string, body map[string]any) (id, token string) {
	t.Helper()
	request, err := json.Marshal(body)
	testkit.Must(t, err)
	resp, text := i.Post(t, "/api/v1/sessions/token", string(request), "X-API-Key", key)
	var v struct{ SessionID, Token string }
	if err := json.Unmarshal([]byte(text), &v); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("POST /api/v1/sessions/token: %d %s", resp.StatusCode, text)
	}
	return v.SessionID, v.Token
}

// Browser is one WebSocket of a session.
type Browser struct {
	Conn    *websocket.Conn
	Session string
	T       testing.TB
}

// Dial opens a WebSocket as a browser does. query is appended to the URL.
func Dial(t testing.TB, i *Instance, token, query string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}, HandshakeTimeout: testkit.Timeout, TLSClientConfig: i.TLS}
	conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(i.URL, "http")+"/ws/session"+query, nil)
	if resp != nil {
		contract.CheckResponse(t, resp)
	}
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, resp, err
}

// Connect is Dial for handshakes that must succeed.
func Connect(t testing.TB, i *Instance, session, token, query string) *Browser {
	t.Helper()
	conn, resp, err := Dial(t, i, token, query)
	if err != nil {
		t.Fatalf("open socket: %v %s", err, Body(resp))
	}
	return &Browser{Conn: conn, Session: session, T: t}
}

// Reconnect is Connect for handshakes that may fail at first.
func Reconnect(t testing.TB, i *Instance, session, token, query string) *Browser {
	t.Helper()
	b := &Browser{Session: session, T: t}
	testkit.Until(t, "the browser connects", func() (ok bool) {
		conn, _, err := Dial(t, i, token, query)
		b.Conn = conn
		return err == nil
	})
	return b
}

// RawFrame returns a frame of the WebSocket protocol with a masking key of zeros.
func RawFrame(final bool, opcode byte, payload string) string {
	header := []byte{opcode, 0x80 | 127}
	if final {
		header[0] |= 0x80
	}
	if len(payload) < 126 {
		header[1] = 0x80 | byte(len(payload))
	} else {
		header = binary.BigEndian.AppendUint64(header, uint64(len(payload)))
	}
	return string(header) + "\x00\x00\x00\x00" + payload
}

// Body returns the response body of a rejected handshake.
func Body(resp *http.Response) string {
	if resp == nil {
		return ""
	}
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

// Received is a frame that the browser received.
type Received struct {
	wire.ChannelMessage
	Raw string
}

// Read returns the next frame.
func (b *Browser) Read() (Received, error) {
	_ = b.Conn.SetReadDeadline(time.Now().Add(testkit.Timeout))
	_, raw, err := b.Conn.ReadMessage()
	if err != nil {
		return Received{}, err
	}
	contract.CheckFrame(b.T, contract.Send, raw)
	m := Received{Raw: string(raw)}
	return m, json.Unmarshal(raw, &m.ChannelMessage)
}

// Next is Read for frames that must arrive.
func (b *Browser) Next() Received {
	b.T.Helper()
	m, err := b.Read()
	if err != nil {
		b.T.Fatalf("read frame: %v", err)
	}
	return m
}

// Expect reads the next frame, which must contain all parts.
func (b *Browser) Expect(parts ...string) Received {
	b.T.Helper()
	m := b.Next()
	for _, p := range parts {
		if !strings.Contains(m.Raw, p) {
			b.T.Fatalf("got frame %s, want %s in it", m.Raw, p)
		}
	}
	return m
}

// CloseCode skips all frames up to the close frame and returns its code.
func (b *Browser) CloseCode() int {
	b.T.Helper()
	for {
		_, err := b.Read()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			return closed.Code
		}
		if err != nil {
			b.T.Fatalf("socket ended without a close frame: %v", err)
		}
	}
}

// Send writes a frame and returns its message ID.
func (b *Browser) Send(kind, object, payload string) string {
	b.T.Helper()
	id := uuid.NewString()
	b.Write(Frame(kind, b.Session, id, object, payload))
	return id
}

// Frame returns a frame as a browser sends it.
func Frame(kind, session, id, object, payload string) string {
	return fmt.Sprintf(`{"type":%q,"sessionId":%q,"messageId":%q,"timestamp":%d,"direction":"to_ari",%q:%s}`,
		kind, session, id, time.Now().UnixMilli(), object, payload)
}

// Write sends a text frame unchanged.
func (b *Browser) Write(frame string) {
	b.T.Helper()
	if _, err := channel.ParseFrame([]byte(frame), b.Session); err == nil {
		contract.CheckFrame(b.T, contract.Receive, []byte(frame))
	}
	if err := b.Conn.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
		b.T.Fatalf("write frame: %v", err)
	}
}

// Chat sends a chat message and returns its message ID.
func (b *Browser) Chat(text string) string {
	b.T.Helper()
	return b.Send("chat", "chat", fmt.Sprintf(`{"text":%q}`, text))
}

// Cut closes the TCP connection without a close frame, as a lost network does.
func (b *Browser) Cut() { _ = b.Conn.NetConn().Close() }

// ReadyStreamID returns the cursor of a ready frame.
func (m Received) ReadyStreamID() string { return m.ready().StreamID }

// ConnectionID returns the connection ID of a ready frame.
func (m Received) ConnectionID() string { return m.ready().ConnectionID }

func (m Received) ready() (status struct{ StreamID, ConnectionID string }) {
	_ = json.Unmarshal(m.Status, &status)
	return status
}
