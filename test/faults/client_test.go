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

	"telapi/test/harness"
	"telapi/test/testkit"
)

// client is a browser that reconnects until it has sent all its messages and
// received all replies.
type client struct {
	storm                    *storm
	session, token           string
	cursor, connection       string
	written, replies         int             // messages sent and replies received
	unacknowledged           []string        // message IDs, oldest first
	ids                      []string        // all message IDs in order
	seen                     map[string]bool // cursors of received replies
	sockets, resumed, resent int             // sockets opened, sockets resumed, replies received again
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
func (c *client) run(ctx context.Context) error {
	for !c.done() {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		err = c.exchange(ctx, conn)
		_ = conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) done() bool {
	return c.written == c.storm.each && len(c.unacknowledged) == 0 && c.replies == c.storm.each
}

// connect tries random instances until a handshake succeeds.
func (c *client) connect(ctx context.Context) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + c.token}, HandshakeTimeout: testkit.Timeout}
	query := ""
	if c.connection != "" {
		query = "?connectionId=" + c.connection
	}
	if c.cursor != "" {
		query += "&streamId=" + c.cursor
	}
	var status int
	for ctx.Err() == nil {
		i := c.storm.instances[rand.IntN(len(c.storm.instances))]
		conn, resp, err := d.DialContext(ctx, "ws"+i.URL[len("http"):]+"/ws/session"+query, nil)
		if err == nil {
			c.sockets++
			return conn, nil
		}
		if resp != nil {
			// 409: the client does not know the ID of the previous connection,
			// whose lease has to expire first.
			if status = resp.StatusCode; status != http.StatusConflict && status != http.StatusServiceUnavailable {
				return nil, fmt.Errorf("handshake: %d %s", status, harness.Body(resp))
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
func (c *client) exchange(ctx context.Context, conn *websocket.Conn) error {
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
	for !c.done() {
		if ready && c.written < c.storm.each && len(c.unacknowledged) < window {
			id := uuid.NewString()
			c.unacknowledged, c.ids = append(c.unacknowledged, id), append(c.ids, id)
			c.written++
			if c.write(conn, id) != nil {
				return nil
			}
		}
		select {
		case raw, open := <-frames:
			if !open {
				return c.checkClose(readErr)
			}
			if err := c.read(raw); err != nil {
				return err
			}
			if !ready {
				ready = true
				for _, id := range c.unacknowledged {
					if c.write(conn, id) != nil {
						return nil
					}
				}
			}
			if rand.IntN(80) == 0 {
				c.cut(conn)
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("timed out: %d of %d sent, %d unacknowledged, %d replies received on %d sockets", c.written, c.storm.each, len(c.unacknowledged), c.replies, c.sockets)
		}
	}
	return nil
}

// cut closes the TCP connection without a close frame, half of the time with a
// reset.
func (c *client) cut(conn *websocket.Conn) {
	c.storm.cuts.Add(1)
	if tcp, ok := conn.NetConn().(*net.TCPConn); ok && rand.IntN(2) == 0 {
		_ = tcp.SetLinger(0)
	}
	_ = conn.NetConn().Close()
}

func (c *client) write(conn *websocket.Conn, id string) error {
	n := c.written - 1 // the runtime recognizes resent messages by their ID
	return conn.WriteMessage(websocket.TextMessage, []byte(harness.Frame("chat", c.session, id, "chat", fmt.Sprintf(`{"n":%d}`, n))))
}

// checkClose returns an error if the close code forbids reconnecting.
func (c *client) checkClose(err error) error {
	var closed *websocket.CloseError
	if websocket.IsCloseError(err, 4005) {
		c.storm.closed.Add(1)
	}
	if errors.As(err, &closed) && (closed.Code >= 4500 || closed.Code == 1007 || closed.Code == 1008 || closed.Code == 1009) {
		return fmt.Errorf("the close code forbids reconnecting: %w", err)
	}
	return nil
}

func (c *client) read(raw []byte) error {
	var m envelope
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	switch {
	case m.Status.Event == "ready":
		c.cursor, c.connection = m.Status.StreamID, m.Status.ConnectionID
	case m.Status.Event == "ack":
		// A resent message may be acknowledged twice.
		if len(c.unacknowledged) > 0 && c.unacknowledged[0] == m.Status.MessageID {
			c.unacknowledged = c.unacknowledged[1:]
			c.storm.acknowledge()
		} else if len(c.unacknowledged) > 0 {
			return fmt.Errorf("message %s is acknowledged before %s", m.Status.MessageID, c.unacknowledged[0])
		}
	case m.Type == "reconnect":
		if !m.Reconnect.Recovered {
			return errors.New("history was lost")
		}
		c.resumed++
	case m.Type == "chat":
		if c.seen[m.StreamID] {
			c.resent++
			return nil
		}
		if m.Chat.N != c.replies {
			return fmt.Errorf("received reply %d, want %d", m.Chat.N, c.replies)
		}
		c.seen[m.StreamID] = true
		c.replies++
		c.cursor = m.StreamID
	case m.Type == "error" && m.Error.Code == "SERVICE_UNAVAILABLE" && m.Error.Message != "":
		c.storm.rejected.Add(1)
	default:
		return fmt.Errorf("unexpected frame %s", raw)
	}
	return nil
}
