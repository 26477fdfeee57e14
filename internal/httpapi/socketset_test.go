package httpapi

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

// dialReady connects and waits for the ready frame: the server's socket runs then.
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
		t.Errorf("closed with %v", err)
	}
	shutdown.Wait()
	if n := metricValue(t, s.sockets.open); n != 0 {
		t.Errorf("%v sockets are open after shutdown", n)
	}
}

// A handshake may end after the drain has started.
func TestSocketOpenedDuringDrainIsClosed(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	s.sockets.drain(t.Context(), 0)
	if err := readToEnd(dial()); !websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("closed with %v", err)
	}
	s.sockets.close()
	if err := readToEnd(dial()); websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("after the end, closed with %v", err)
	}
	if n := metricValue(t, s.sockets.open); n != 0 {
		t.Errorf("%v sockets are open", n)
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
		t.Errorf("closed with %v", err)
	}
	if n := metricValue(t, s.sockets.open); n != 0 {
		t.Errorf("%v sockets are open after shutdown", n)
	}
}
