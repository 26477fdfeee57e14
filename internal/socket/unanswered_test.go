package socket

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/internal/channel"
	"telapi/test/testkit"
)

// slowStore takes some time for each frame.
type slowStore struct {
	channelStore
	append, audio time.Duration
}

func (s slowStore) Append(context.Context, channel.Owner, []channel.Frame) ([]channel.Outcome, string, error) {
	time.Sleep(s.append)
	return []channel.Outcome{channel.Appended}, "1-1", nil
}

func (s slowStore) SendAudio(context.Context, string, []byte) error {
	time.Sleep(s.audio)
	return nil
}

// gatheringConn is a connection whose writes can be held back and sent as one.
type gatheringConn struct {
	net.Conn
	held *bytes.Buffer // nil: not held back
}

func (c *gatheringConn) Write(b []byte) (int, error) {
	if c.held != nil {
		return c.held.Write(b)
	}
	return c.Conn.Write(b)
}

// pipedSocket is a socket between a client and a server in one bubble.
type pipedSocket struct {
	*websocket.Conn
	set    *Set
	client *gatheringConn
}

// withSocket runs a test with a socket that is ready, in virtual time.
func withSocket(t *testing.T, store channel.Store, test func(*testing.T, pipedSocket)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, channels, handler := newSocketServer(t, store, time.Hour)
		listener, server := make(testkit.PipeListener, 1), http.Server{Handler: handler}
		go func() { _ = server.Serve(listener) }()
		client := &gatheringConn{}
		dialer := websocket.Dialer{NetDialContext: func(context.Context, string, string) (net.Conn, error) {
			var accepted net.Conn
			client.Conn, accepted = net.Pipe()
			listener <- accepted
			return client, nil
		}}
		ws, _, err := dialer.DialContext(t.Context(), "ws://telapi/", nil)
		if err == nil {
			_, _, err = ws.ReadMessage() // ready
		}
		testkit.Must(t, err)
		test(t, pipedSocket{ws, s, client})
		_ = ws.Close()
		s.Close()
		close(listener)
		_ = server.Close()
		channels.Close()
	})
}

// send sends frames and a ping in one piece.
func (s pipedSocket) send(t *testing.T, kind string, frames int) {
	t.Helper()
	s.client.held = new(bytes.Buffer)
	for range frames {
		frame := `{"type":"` + kind + `","sessionId":"ses_1","messageId":"` + uuid.NewString() + `","timestamp":1,"direction":"to_ari","` + kind + `":{}}`
		testkit.Must(t, s.WriteMessage(websocket.TextMessage, []byte(frame)))
	}
	testkit.Must(t, s.WriteControl(websocket.PingMessage, nil, time.Time{}))
	testkit.Must(t, testkit.ErrorOf(s.client.Conn.Write(s.client.held.Bytes())))
	s.client.held = nil
}

// Whatever hangs, a frame is answered or its socket is closed, so that the browser sends it
// again. A socket that makes progress stays open.
func TestUnansweredFrameDisconnects(t *testing.T) {
	for name, tt := range map[string]struct {
		store  slowStore
		kind   string
		frames int
		closed channel.CloseCode // 0: it stays open
	}{
		"store that hangs":           {slowStore{append: 30 * time.Second}, "chat", 1, channel.CloseNormal},
		"browser that does not read": {slowStore{}, "chat", 1, channel.CloseSlowReader},
		"slow audio":                 {slowStore{audio: 4 * time.Second}, "audio", 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withSocket(t, tt.store, func(t *testing.T, s pipedSocket) {
				s.send(t, tt.kind, tt.frames)
				time.Sleep(10 * time.Second)
				_ = s.SetReadDeadline(time.Now().Add(time.Second))
				_, _, err := s.ReadMessage()
				timeout, _ := errors.AsType[net.Error](err)
				if open := timeout != nil && timeout.Timeout(); open != (tt.closed == 0) {
					t.Errorf("read after 10s: %v, want open %t", err, tt.closed == 0)
				}
				time.Sleep(30 * time.Second) // until the store returns
				if tt.closed != 0 {
					if n := testkit.MetricValue(t, s.set.closed.WithLabelValues(strconv.Itoa(int(tt.closed)))); n != 1 {
						t.Errorf("%v sockets closed with %d, want 1", n, tt.closed)
					}
				}
			})
		})
	}
}

// A browser that stops reading for a while keeps its socket, even if it sends pings
// meanwhile: pongs must not shorten the deadline of a write in progress.
func TestPausedReaderKeepsSocket(t *testing.T) {
	withSocket(t, slowStore{}, func(t *testing.T, s pipedSocket) {
		s.send(t, "chat", 1)
		time.Sleep(answerTimeout - time.Second)
		if _, frame, err := s.ReadMessage(); err != nil || !bytes.Contains(frame, []byte(`"ack"`)) {
			t.Errorf("after a pause: %s, %v, want the acknowledgement", frame, err)
		}
	})
}
