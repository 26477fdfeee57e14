package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/channel"
)

// held is a store in which a session is in good hands.
type held struct {
	channel.Store
	channel.Hub
	channel.Sessions
}

func (held) Attach(context.Context, channel.AttachRequest) (channel.AttachResult, error) {
	return channel.AttachResult{}, nil
}
func (held) Detach(context.Context, string, string, []byte) error { return nil }
func (held) Subscribe(context.Context, string, channel.Subscriber) (func(), error) {
	return func() {}, nil
}
func (held) Redeem(context.Context, string) error { return nil }
func (held) Touch(string)                         {}

func TestSocketThatOpensAtTheEndOfItsSessionIsClosedWithIt(t *testing.T) {
	limits := channel.Limits{PingIntervalMs: 60_000, FrameBytes: 1 << 10, QueuedBytes: 1 << 20, FramesPerSecond: 1}
	channels := channel.NewService(held{}, held{}, held{}, limits, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	all := newSockets(prometheus.NewRegistry())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := channels.Open(r.Context(), channel.SessionInfo{ID: "ses_1", ExpiresAt: time.Now()}, "", "")
		if err != nil {
			t.Error(err)
			return
		}
		line := &line{}
		ws, err := upgrader.Upgrade(lineTaker{w, line}, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		p := &pump{conn: ws, line: line, channel: conn, sockets: all, limits: limits}
		all.add(p)
		p.run()
	}))
	defer server.Close()
	for range 20 {
		ws, _, err := websocket.DefaultDialer.Dial(strings.Replace(server.URL, "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, _, err = ws.ReadMessage()
		}
		if !websocket.IsCloseError(err, int(channel.CloseExpired)) {
			t.Errorf("closed with %v", err)
		}
		_ = ws.Close()
	}
}
