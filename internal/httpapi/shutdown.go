package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"telapi/internal/background"
	"telapi/internal/httpserve"
)

// Serve accepts connections until Shutdown. It always returns an error, which is
// http.ErrServerClosed after Shutdown.
func (s *Server) Serve(l net.Listener) error {
	s.listener.Store(&l)
	defer close(s.served)
	err := s.http.Serve(httpserve.Listen(s.http, l, s.deps.Log))
	if errors.Is(err, net.ErrClosed) {
		return http.ErrServerClosed
	}
	return err
}

// busyConnections are the connections that have sent no request yet or wait for a
// response. WebSockets are not among them.
type busyConnections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// update is the hook http.Server.ConnState.
func (b *busyConnections) update(conn net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		b.open[conn] = struct{}{}
	default:
		delete(b.open, conn)
	}
}

func (b *busyConnections) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

// Shutdown ends streams, closes sockets with CloseRestart at random times within
// window, closes the port and waits for the requests in flight. When ctx ends, it
// disconnects the remaining clients and returns the error of ctx. All sockets have
// ended when Shutdown returns.
func (s *Server) Shutdown(ctx context.Context, window time.Duration) error {
	s.endStreams()
	s.sockets.Drain(ctx, window)
	s.answerLastRequests(ctx)
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
	}
	s.sockets.Close()
	s.rejections.flush()
	return err
}

// lastRequestsTimeout bounds answerLastRequests. http.Server waits for running requests
// afterwards.
const lastRequestsTimeout = 5 * time.Second

// answerLastRequests closes the port and waits until no connection is busy.
// http.Server.Shutdown would close connections whose request it has not read completely.
func (s *Server) answerLastRequests(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastRequestsTimeout)
	defer cancel()
	if l := s.listener.Load(); l != nil {
		_ = (*l).Close()
		select {
		case <-s.served:
		case <-ctx.Done():
		}
	}
	for s.connections.count() > 0 && ctx.Err() == nil {
		s.http.SetKeepAlivesEnabled(false) // closes connections after their response, or after 5 s without a request
		_ = background.Sleep(ctx, 10*time.Millisecond)
	}
}
