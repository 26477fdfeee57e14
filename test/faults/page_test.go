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

// page is a browser that comes back for as long as it has something to say or
// to hear, with everything it needs for that.
type page struct {
	storm                         *storm
	session, token                string
	cursor, connection            string
	written, answers              int
	unacknowledged                []string // ids, oldest first
	ids                           []string // of all messages, in order
	seen                          map[string]bool
	sockets, resumed, repetitions int
}

// window is how many messages a page leaves unacknowledged.
const window = 16

// envelope is what a page reads of a frame.
type envelope struct {
	Type, StreamID string
	Status         struct{ Event, MessageID, StreamID, ConnectionID string }
	Chat           struct{ N int }
	Reconnect      *struct{ Recovered bool }
	Error          struct{ Code, Message string }
}

func (p *page) live(ctx context.Context) error {
	for !p.done() {
		conn, err := p.connect(ctx)
		if err != nil {
			return err
		}
		err = p.talk(ctx, conn)
		_ = conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *page) done() bool {
	return p.written == p.storm.each && len(p.unacknowledged) == 0 && p.answers == p.storm.each
}

// connect tries the instances until one lets it in.
func (p *page) connect(ctx context.Context) (*websocket.Conn, error) {
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
			// In use: the connection before was never introduced to the page,
			// and its lease has to run out.
			if status = resp.StatusCode; status != http.StatusConflict && status != http.StatusServiceUnavailable {
				return nil, fmt.Errorf("handshake: %d %s", status, talk.Body(resp))
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, fmt.Errorf("no socket in time; the last answer was %d", status)
}

// talk uses a socket until it ends, by its own hand or another's.
func (p *page) talk(ctx context.Context, conn *websocket.Conn) error {
	frames := make(chan []byte, 64)
	over := make(chan struct{})
	defer close(over)
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
			case <-over:
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
				return p.mayComeBack(readErr)
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
			return fmt.Errorf("%d of %d written, %d unacknowledged, %d answers heard on %d sockets", p.written, p.storm.each, len(p.unacknowledged), p.answers, p.sockets)
		}
	}
	return nil
}

// cut drops the connection without a close frame, half the time with a reset.
func (p *page) cut(conn *websocket.Conn) {
	p.storm.cuts.Add(1)
	if tcp, ok := conn.NetConn().(*net.TCPConn); ok && rand.IntN(2) == 0 {
		_ = tcp.SetLinger(0)
	}
	_ = conn.NetConn().Close()
}

func (p *page) write(conn *websocket.Conn, id string) error {
	n := p.written - 1 // resent ones are told by their id
	return conn.WriteMessage(websocket.TextMessage, []byte(talk.Frame("chat", p.session, id, "chat", fmt.Sprintf(`{"n":%d}`, n))))
}

// mayComeBack holds the end of a socket against what the code promises.
func (p *page) mayComeBack(err error) error {
	var closed *websocket.CloseError
	if websocket.IsCloseError(err, 4005) {
		p.storm.away.Add(1)
	}
	if errors.As(err, &closed) && (closed.Code >= 4500 || closed.Code == 1007 || closed.Code == 1008 || closed.Code == 1009) {
		return fmt.Errorf("told not to come back: %w", err)
	}
	return nil
}

func (p *page) read(raw []byte) error {
	var m envelope
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	switch {
	case m.Status.Event == "ready":
		p.cursor, p.connection = m.Status.StreamID, m.Status.ConnectionID
	case m.Status.Event == "ack":
		// Of a repeated message two acknowledgements may come.
		if len(p.unacknowledged) > 0 && p.unacknowledged[0] == m.Status.MessageID {
			p.unacknowledged = p.unacknowledged[1:]
			p.storm.acknowledged.Add(1)
		} else if len(p.unacknowledged) > 0 {
			return fmt.Errorf("%s is acknowledged before %s", m.Status.MessageID, p.unacknowledged[0])
		}
	case m.Type == "reconnect":
		if !m.Reconnect.Recovered {
			return errors.New("history was lost")
		}
		p.resumed++
	case m.Type == "chat":
		if p.seen[m.StreamID] {
			p.repetitions++
			return nil
		}
		if m.Chat.N != p.answers {
			return fmt.Errorf("answer %d came where %d was due", m.Chat.N, p.answers)
		}
		p.seen[m.StreamID] = true
		p.answers++
		p.cursor = m.StreamID
	case m.Type == "error" && m.Error.Code == "SERVICE_UNAVAILABLE" && m.Error.Message != "":
		p.storm.refused.Add(1)
	default:
		return fmt.Errorf("unexpected frame %s", raw)
	}
	return nil
}
