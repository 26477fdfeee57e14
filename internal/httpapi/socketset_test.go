package httpapi

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

// dialReady connects and waits for the ready frame. After it, the server's socket
// is running.
func dialReady(t *testing.T, dial func() *websocket.Conn) *websocket.Conn {
	t.Helper()
	ws := dial()
	if _, _, err := ws.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	return ws
}

func TestShutdownClosesSocketsWithRestart(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	ws := dialReady(t, dial)
	var shutdown sync.WaitGroup
	shutdown.Go(func() {
		if err := s.Shutdown(t.Context(), time.Millisecond); err != nil {
			t.Error(err)
		}
	})
	if err := readToEnd(ws); !websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("closed with %v, want close code %d", err, channel.CloseRestart)
	}
	shutdown.Wait()
	if n, used := metricValue(t, s.sockets.open), s.sockets.budget.Used(); n != 0 || used != 0 {
		t.Errorf("%v sockets are open and %d in the budget after shutdown, want 0", n, used)
	}
}

// A handshake may end after the drain has started.
func TestSocketOpenedDuringDrainIsClosed(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	s.sockets.drain(t.Context(), 0)
	if err := readToEnd(dial()); !websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("during the drain: closed with %v, want close code %d", err, channel.CloseRestart)
	}
	s.sockets.close()
	if s.sockets.begin() {
		t.Error("after close: a handshake started, want none")
	}
	if n := metricValue(t, s.sockets.open); n != 0 {
		t.Errorf("%v sockets are open, want 0", n)
	}
}

func TestShutdownDisconnectsSocketsAtItsDeadline(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	ws := dialReady(t, dial)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.sockets.drain(ctx, time.Hour)
	s.sockets.close()
	if err := readToEnd(ws); websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("closed with %v, want a disconnect without a close frame", err)
	}
	if n := metricValue(t, s.sockets.open); n != 0 {
		t.Errorf("%v sockets are open after shutdown, want 0", n)
	}
}
