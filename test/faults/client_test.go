package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/test/talk"
)

// client is a browser that reconnects until it has sent all its messages and
// received all replies.
type client struct {
	storm                    *storm
	session, token           string
	cursor, connection       string
	written, replies         int
	unacknowledged           []string // message IDs, oldest first
	ids                      []string // all message IDs in order
	seen                     map[string]bool
	sockets, resumed, resent int
}

// window is the number of messages that a client sends without an ack.
const window = 16

// envelope holds the members of a frame that a client uses.
type envelope struct {
	Type, StreamID string
	Status         struct{ Event, MessageID, StreamID, ConnectionID string }
	Chat           struct{ N int }
	Reconnect      *struct{ Recovered bool }
	Error          struct{ Code, Message string }
}

// run connects again and again until the client is done.
func (p *client) run(ctx context.Context) error {
	for !p.done() {
		conn, err := p.connect(ctx)
		if err != nil {
			return err
		}
		err = p.exchange(ctx, conn)
		_ = conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *client) done() bool {
	return p.written == p.storm.each && len(p.unacknowledged) == 0 && p.replies == p.storm.each
}

// connect tries random instances until a handshake succeeds.
func (p *client) connect(ctx context.Context) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + p.token}, HandshakeTimeout: 10 * time.Second}
	query := "?connectionId=" + p.connection
	if p.cursor != "" {
		query += "&streamId=" + p.cursor
	}
	var status int
	for ctx.Err() == nil {
		i := p.storm.instances[rand.IntN(len(p.storm.instances))]
		conn, resp, err := d.DialContext(ctx, "ws"+i.URL[len("http"):]+"/ws/session"+query, nil)
		if err == nil {
			p.sockets++
			return conn, nil
		}
		if resp != nil {
			// 409: the client does not know the ID of the previous connection,
			// whose lease has to expire first.
			if status = resp.StatusCode; status != http.StatusConflict && status != http.StatusServiceUnavailable {
				return nil, fmt.Errorf("handshake: %d %s", status, talk.Body(resp))
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("no handshake succeeded in time; last status %d", status)
}

// exchange sends and receives on a socket until it ends or the client cuts it.
func (p *client) exchange(ctx context.Context, conn *websocket.Conn) error {
	frames := make(chan []byte, 64)
	done := make(chan struct{})
	defer close(done)
	var readErr error
	go func() {
		defer close(frames)
		for {
			_, raw, err := conn.ReadMessage()
			if err != nil {
				readErr = err
				return
			}
			select {
			case frames <- raw:
			case <-done:
				return
			}
		}
	}()
	ready := false
	for !p.done() {
		if ready && p.written < p.storm.each && len(p.unacknowledged) < window {
			id := uuid.NewString()
			p.unacknowledged, p.ids = append(p.unacknowledged, id), append(p.ids, id)
			p.written++
			if p.write(conn, id) != nil {
				return nil
			}
		}
		select {
		case raw, open := <-frames:
			if !open {
				return p.checkClose(readErr)
			}
			if err := p.read(raw); err != nil {
				return err
			}
			if !ready {
				ready = true
				for _, id := range p.unacknowledged {
					if p.write(conn, id) != nil {
						return nil
					}
				}
			}
			if rand.IntN(80) == 0 {
				p.cut(conn)
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("timed out: %d of %d sent, %d unacknowledged, %d replies received on %d sockets", p.written, p.storm.each, len(p.unacknowledged), p.replies, p.sockets)
		}
	}
	return nil
}

// cut closes the TCP connection without a close frame, half of the time with a
// reset.
func (p *client) cut(conn *websocket.Conn) {
	p.storm.cuts.Add(1)
	if tcp, ok := conn.NetConn().(*net.TCPConn); ok && rand.IntN(2) == 0 {
		_ = tcp.SetLinger(0)
	}
	_ = conn.NetConn().Close()
}

func (p *client) write(conn *websocket.Conn, id string) error {
	n := p.written - 1 // the runtime recognizes resent messages by their ID
	return conn.WriteMessage(websocket.TextMessage, []byte(talk.Frame("chat", p.session, id, "chat", fmt.Sprintf(`{"n":%d}`, n))))
}

// checkClose returns an error if the close code forbids reconnecting.
func (p *client) checkClose(err error) error {
	var closed *websocket.CloseError
	if websocket.IsCloseError(err, 4005) {
		p.storm.closed.Add(1)
	}
	if errors.As(err, &closed) && (closed.Code >= 4500 || closed.Code == 1007 || closed.Code == 1008 || closed.Code == 1009) {
		return fmt.Errorf("the close code forbids reconnecting: %w", err)
	}
	return nil
}

func (p *client) read(raw []byte) error {
	var m envelope
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	switch {
	case m.Status.Event == "ready":
		p.cursor, p.connection = m.Status.StreamID, m.Status.ConnectionID
	case m.Status.Event == "ack":
		// A resent message may be acknowledged twice.
		if len(p.unacknowledged) > 0 && p.unacknowledged[0] == m.Status.MessageID {
			p.unacknowledged = p.unacknowledged[1:]
			p.storm.acknowledge()
		} else if len(p.unacknowledged) > 0 {
			return fmt.Errorf("message %s is acknowledged before %s", m.Status.MessageID, p.unacknowledged[0])
		}
	case m.Type == "reconnect":
		if !m.Reconnect.Recovered {
			return errors.New("history was lost")
		}
		p.resumed++
	case m.Type == "chat":
		if p.seen[m.StreamID] {
			p.resent++
			return nil
		}
		if m.Chat.N != p.replies {
			return fmt.Errorf("received reply %d, want %d", m.Chat.N, p.replies)
		}
		p.seen[m.StreamID] = true
		p.replies++
		p.cursor = m.StreamID
	case m.Type == "error" && m.Error.Code == "SERVICE_UNAVAILABLE" && m.Error.Message != "":
		p.storm.rejected.Add(1)
	default:
		return fmt.Errorf("unexpected frame %s", raw)
	}
	return nil
}
