package campaign

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"telapi/test/harness"
)

// maxPending is the number of operations that a browser has under way.
const maxPending = 8

// maxHandshakeDelay is how late a failed handshake may reach an instance and replace
// the connection that was opened after it.
const maxHandshakeDelay = time.Minute

// browser is a client that reconnects like the SDK: it resumes with its cursor and
// resends unacknowledged frames.
type browser struct {
	url, session, token string
	tls                 *tls.Config
	ledger              *ledger
	delays              [2]time.Duration // minimum and maximum of the bound of reconnect delays
	wake                chan struct{}    // new frames to write

	mu      sync.Mutex
	away    time.Time // no connections before this time
	conn    *websocket.Conn
	unacked []*operation
	written int // of unacked, on this connection
	pending []*operation

	// Used by run only.
	cursor, connection string
	attempt            int
	handshakeFailed    time.Time
}

// newBrowser returns a browser with a new session.
func newBrowser(s *installation, l *ledger) *browser {
	session, token := s.issue()
	return &browser{
		url: "wss" + strings.TrimPrefix(s.URL, "https") + "/ws/session", session: session, token: token,
		tls: s.tls, ledger: l, delays: s.size.reconnect, wake: make(chan struct{}, 1),
	}
}

// start starts an operation. Unless force is set, it returns nil if too many
// operations are under way.
func (b *browser) start(force bool) *operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Operations complete in order. One before a completed one is lost.
	for i, o := range slices.Backward(b.pending) {
		if o.completed() {
			b.pending = slices.Delete(b.pending, 0, i+1)
			break
		}
	}
	if len(b.pending) >= maxPending && !force {
		return nil
	}
	o := b.ledger.open(b.session)
	b.pending, b.unacked = append(b.pending, o), append(b.unacked, o)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return o
}

// cut closes the TCP connection without a close frame, half of the time with a
// reset.
func (b *browser) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		return
	}
	conn := b.conn.NetConn()
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if rand.IntN(2) == 0 {
		harness.ResetConn(conn)
	} else {
		_ = conn.Close()
	}
}

// stayAway closes the socket and reconnects later.
func (b *browser) stayAway(d time.Duration) {
	b.mu.Lock()
	b.away = time.Now().Add(d)
	b.mu.Unlock()
	b.cut()
}

// run keeps the browser connected until ctx ends or its session has ended.
func (b *browser) run(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := b.connect(ctx)
		if err == nil {
			err = b.converse(ctx, conn)
		}
		if ctx.Err() != nil {
			return
		}
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			switch code := closed.Code; {
			case code == 4503:
				return
			case code == 4003:
				b.ledger.lossReported(b.session, false)
			case code == 4502 && time.Since(b.handshakeFailed) < maxHandshakeDelay:
			case code >= 4500, code == 1007, code == 1008, code == 1009:
				b.ledger.problem("socket closed with %d %s, which forbids reconnecting", code, closed.Text)
			}
			b.ledger.note("close code %d", closed.Code)
		}
		bound := min(b.delays[1], b.delays[0]<<min(b.attempt, 16))
		b.attempt++
		b.mu.Lock()
		away := time.Until(b.away)
		b.mu.Unlock()
		if !pause(ctx, max(away, rand.N(bound))) {
			return
		}
	}
}

func (b *browser) connect(ctx context.Context) (*websocket.Conn, error) {
	query := url.Values{}
	if b.cursor != "" {
		query.Set("streamId", b.cursor)
	}
	if b.connection != "" {
		query.Set("connectionId", b.connection)
	}
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + b.token}, HandshakeTimeout: 15 * time.Second, TLSClientConfig: b.tls}
	conn, resp, err := d.DialContext(ctx, b.url+"?"+query.Encode(), nil)
	if err == nil {
		return conn, nil
	}
	if resp != nil {
		switch {
		case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout, resp.StatusCode == http.StatusConflict:
			b.ledger.note("handshake: %d", resp.StatusCode)
		default:
			b.ledger.problem("handshake: %d %s", resp.StatusCode, harness.Body(resp))
		}
	}
	b.handshakeFailed = time.Now()
	return nil, fmt.Errorf("handshake: %w", err)
}

// converse writes and reads frames until the socket closes.
func (b *browser) converse(ctx context.Context, conn *websocket.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	b.mu.Lock()
	b.conn, b.written = conn, 0
	b.mu.Unlock()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- b.read(conn, sync.OnceFunc(func() { close(ready) })) }()
	select {
	case <-ready:
		b.attempt = 0
	case err := <-ended:
		return err
	}
	for {
		if err := b.write(conn); err != nil {
			_ = conn.Close() // read may have seen a close frame, which explains the error
			return cmpErr(<-ended, err)
		}
		select {
		case <-b.wake:
		case err := <-ended:
			return err
		}
	}
}

// cmpErr returns the error that contains a close code, if there is one.
func cmpErr(read, write error) error {
	var closed *websocket.CloseError
	if errors.As(read, &closed) {
		return read
	}
	return write
}

// write sends frames that were not written on this connection.
func (b *browser) write(conn *websocket.Conn) error {
	for {
		b.mu.Lock()
		if b.written >= len(b.unacked) {
			b.mu.Unlock()
			return nil
		}
		o := b.unacked[b.written]
		b.written++
		b.mu.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
		frame := harness.Frame("chat", b.session, o.id, "chat", fmt.Sprintf(`{"text":"%d"}`, o.number))
		if err := conn.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
			return err
		}
	}
}

// received has the members of a frame that a browser uses.
type received struct {
	Type, StreamID, MessageID string
	Status                    struct{ Event, MessageID, StreamID, ConnectionID string }
	Reconnect                 *struct{ Recovered bool }
	Error                     struct{ Code string }
}

// read handles frames until the socket closes.
func (b *browser) read(conn *websocket.Conn, ready func()) error {
	for {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // the service pings more often
		conn.SetPingHandler(func(data string) error {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			err := conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
			var timeout net.Error
			if errors.Is(err, websocket.ErrCloseSent) || errors.As(err, &timeout) {
				return nil
			}
			return err
		})
		_, raw, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		var m received
		if err := json.Unmarshal(raw, &m); err != nil {
			b.ledger.problem("invalid frame %s", raw)
			continue
		}
		switch {
		case m.Status.Event == "ready":
			b.connection = m.Status.ConnectionID
			b.cursor = m.Status.StreamID
			ready()
		case m.Status.Event == "ack":
			b.acknowledged(m.Status.MessageID)
		case m.Type == "reconnect":
			if m.Reconnect != nil && !m.Reconnect.Recovered {
				b.ledger.lossReported(b.session, false)
			}
		case m.Type == "chat":
			b.cursor = m.StreamID
			b.ledger.receive(m.MessageID, m.StreamID)
		case m.Type == "error":
			b.ledger.note("error frame %s", m.Error.Code)
		default:
			b.ledger.problem("unexpected frame %s", raw)
		}
	}
}

// acknowledged removes a frame from those to resend. A frame that was resent may
// be acknowledged twice.
func (b *browser) acknowledged(id string) {
	b.mu.Lock()
	i := slices.IndexFunc(b.unacked, func(o *operation) bool { return o.id == id })
	if i >= 0 {
		b.unacked = slices.Delete(b.unacked, i, i+1)
		if i < b.written {
			b.written--
		}
	}
	b.mu.Unlock()
	if i >= 0 {
		b.ledger.update(id, func(o *operation) { o.frame.acknowledged = true })
	}
	if i > 0 {
		b.ledger.problem("frame %s acknowledged before an earlier one", id)
	}
}
