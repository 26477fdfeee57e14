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

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/httpserve"
)

// channelStore is a fake channel.Store and channel.Sessions that accepts every
// connection.
type channelStore struct {
	channel.Store
	channel.Sessions
}

func (channelStore) Attach(context.Context, channel.AttachRequest) (channel.AttachResult, error) {
	return channel.AttachResult{}, nil
}
func (channelStore) Detach(context.Context, channel.Owner, []byte) error { return nil }
func (channelStore) Subscribe(context.Context, string, channel.Subscriber) (func(), error) {
	return func() {}, nil
}
func (channelStore) Redeem(context.Context, string) error { return nil }
func (channelStore) Touch(string)                         {}

// serveSockets returns a server that opens a socket for every request, and a
// function that connects to it.
func serveSockets(t *testing.T, lifetime time.Duration) (*Server, func() *websocket.Conn) {
	t.Helper()
	s, _ := newTestServer(nil)
	limits := channel.Limits{PingIntervalMs: 60_000, FrameBytes: 1 << 10, QueuedBytes: 1 << 20, FramesPerSecond: 1, AudioBytesPerSecond: 1 << 20}
	s.deps.Channels = channel.NewService(channelStore{}, channelStore{}, limits, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := channel.SessionInfo{Offer: wire.Offer{SessionID: "ses_1"}, ExpiresAt: time.Now().Add(lifetime)}
		x := &exchange{Response: httpserve.Response{ResponseWriter: w, Request: r}}
		if err := s.upgrade(x, r, info, resumption{}); err != nil || x.Err != nil {
			t.Errorf("upgrade: %v, %v", err, x.Err)
		}
	}))
	t.Cleanup(server.Close)
	return s, func() *websocket.Conn {
		t.Helper()
		ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ws.Close() })
		return ws
	}
}

// readToEnd reads from a client's socket until it is closed and returns the error.
func readToEnd(ws *websocket.Conn) (err error) {
	_ = ws.SetReadDeadline(time.Now().Add(30 * time.Second))
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	return err
}

func TestSocketOfExpiredSessionIsClosed(t *testing.T) {
	s, dial := serveSockets(t, 0)
	defer s.sockets.close()
	for range 20 {
		if err := readToEnd(dial()); !websocket.IsCloseError(err, int(channel.CloseExpired)) {
			t.Errorf("closed with %v, want close code %d", err, channel.CloseExpired)
		}
	}
}
