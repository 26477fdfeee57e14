package harness

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/testkit"
)

// Page is a browser that stays connected like the SDK: it resumes with its cursor, and sends
// frames that were not acknowledged again. Run calls the functions, one at a time.
type Page struct {
	Session string
	TLS     *tls.Config

	Handle       func(m Received)                        // a frame that is neither ready nor an acknowledgement
	Acknowledged func(id string, early bool)             // early: before a frame that was sent earlier
	Rejected     func(resp *http.Response)               // a handshake has failed; without a response, resp is nil
	Closed       func(err error) (again bool)            // a connection has ended
	Delay        func(attempt int) (pause time.Duration) // before the next connection

	url, token string
	wake       chan struct{} // there are frames to write

	mu      sync.Mutex
	conn    *websocket.Conn
	frames  []pageFrame // without an acknowledgement
	written int         // of frames, on this connection

	// Used by Run only.
	cursor, connection string
	attempt            int
}

type pageFrame struct{ id, text string }

// NewPage returns the browser of a session. Set its functions before Run.
func NewPage(serviceURL, session, token string) *Page {
	return &Page{Session: session, url: "ws" + strings.TrimPrefix(serviceURL, "http") + "/ws/session", token: token, wake: make(chan struct{}, 1)}
}

// Chat sends a chat message with a message ID, once there is a connection.
func (p *Page) Chat(id, text string) {
	payload, _ := json.Marshal(map[string]string{"text": text})
	p.mu.Lock()
	p.frames = append(p.frames, pageFrame{id, Frame("chat", p.Session, id, "chat", string(payload))})
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// NetConn returns the TCP connection, or nil.
func (p *Page) NetConn() net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return nil
	}
	if secured, ok := p.conn.NetConn().(*tls.Conn); ok {
		return secured.NetConn()
	}
	return p.conn.NetConn()
}

// Run keeps the browser connected until ctx ends or Closed returns false.
func (p *Page) Run(ctx context.Context) {
	for ctx.Err() == nil {
		conn, resp, err := p.connect(ctx)
		if err == nil {
			err = p.converse(ctx, conn)
			if ctx.Err() == nil && !p.Closed(err) {
				return
			}
		} else if ctx.Err() == nil {
			p.Rejected(resp)
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.Delay(p.attempt)):
			p.attempt++
		}
	}
}

func (p *Page) connect(ctx context.Context) (*websocket.Conn, *http.Response, error) {
	query := url.Values{}
	for name, value := range map[string]string{"streamId": p.cursor, "connectionId": p.connection} {
		if value != "" {
			query.Set(name, value)
		}
	}
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + p.token}, HandshakeTimeout: 15 * time.Second, TLSClientConfig: p.TLS}
	return d.DialContext(ctx, p.url+"?"+query.Encode(), nil)
}

// converse writes and reads frames until the connection ends.
func (p *Page) converse(ctx context.Context, conn *websocket.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	p.mu.Lock()
	p.conn, p.written = conn, 0
	p.mu.Unlock()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- p.read(conn, sync.OnceFunc(func() { close(ready) })) }()
	select {
	case <-ready:
		p.attempt = 0
	case err := <-ended:
		return err
	}
	for {
		if err := p.write(conn); err != nil {
			_ = conn.Close()
			closed, _ := errors.AsType[*websocket.CloseError](<-ended)
			if closed != nil { // explains the error
				return closed
			}
			return err
		}
		select {
		case <-p.wake:
		case err := <-ended:
			return err
		}
	}
}

// write sends frames that were not written on this connection.
func (p *Page) write(conn *websocket.Conn) error {
	for {
		p.mu.Lock()
		if p.written >= len(p.frames) {
			p.mu.Unlock()
			return nil
		}
		frame := p.frames[p.written]
		p.written++
		p.mu.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
		if err := conn.WriteMessage(websocket.TextMessage, []byte(frame.text)); err != nil {
			return err
		}
	}
}

// read handles frames until the connection ends.
func (p *Page) read(conn *websocket.Conn, ready func()) error {
	heard := func() { _ = conn.SetReadDeadline(time.Now().Add(testkit.Timeout)) } // the service pings more often
	conn.SetPingHandler(func(data string) error {
		heard()
		err := conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
		if _, timeout := errors.AsType[net.Error](err); timeout || errors.Is(err, websocket.ErrCloseSent) {
			return nil
		}
		return err
	})
	for {
		heard()
		_, raw, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		m := Received{Raw: string(raw)}
		_ = json.Unmarshal(raw, &m.ChannelMessage) // Handle gets what has no type
		var status struct{ Event, MessageID, StreamID, ConnectionID string }
		_ = json.Unmarshal(m.Status, &status) // other frames have none
		switch {
		case m.Type == wire.TypeStatus && status.Event == "ready":
			p.cursor, p.connection = cmp.Or(status.StreamID, p.cursor), status.ConnectionID
			ready()
		case m.Type == wire.TypeStatus && status.Event == "ack":
			p.acknowledge(status.MessageID)
		default:
			p.cursor = cmp.Or(m.StreamID, p.cursor)
			p.Handle(m)
		}
	}
}

// acknowledge removes a frame. One that was sent again may be acknowledged twice.
func (p *Page) acknowledge(id string) {
	p.mu.Lock()
	i := slices.IndexFunc(p.frames, func(f pageFrame) bool { return f.id == id })
	if i >= 0 {
		p.frames = slices.Delete(p.frames, i, i+1)
		p.written -= min(1, max(0, p.written-i))
	}
	p.mu.Unlock()
	if i >= 0 {
		p.Acknowledged(id, i > 0)
	}
}
