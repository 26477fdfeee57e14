package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"telapi/internal/sleep"
)

// Serve accepts connections until Shutdown. It always returns an error, which is
// http.ErrServerClosed after Shutdown.
func (s *Server) Serve(l net.Listener) error {
	s.listener.Store(&l)
	defer close(s.served)
	err := s.http.Serve(l)
	if errors.Is(err, net.ErrClosed) {
		return http.ErrServerClosed
	}
	return err
}

func (s *Server) countConnections(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.connections.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.connections.Add(-1)
	}
}

// Shutdown ends streams, closes sockets with CloseRestart at random times within
// window, closes the port and waits for the requests in flight. When ctx ends, it
// disconnects the remaining clients and returns the error of ctx. All sockets have
// ended when Shutdown returns.
func (s *Server) Shutdown(ctx context.Context, window time.Duration) error {
	s.endStreams()
	s.sockets.drain(ctx, window)
	s.answerLastRequests(ctx)
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
	}
	s.sockets.close()
	s.refusals.flush()
	return err
}

// firstRequestTimeout is how long an open connection may take to send its first request
// during a shutdown.
const firstRequestTimeout = 5 * time.Second

// answerLastRequests closes the port and waits until the open connections are closed,
// each after its response. http.Server.Shutdown would close those whose request it has
// not read completely.
func (s *Server) answerLastRequests(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstRequestTimeout)
	defer cancel()
	if l := s.listener.Load(); l != nil {
		_ = (*l).Close()
		select {
		case <-s.served:
		case <-ctx.Done():
		}
	}
	for s.connections.Load() > 0 && ctx.Err() == nil {
		s.http.SetKeepAlivesEnabled(false) // closes idle connections, the others after their response
		_ = sleep.For(ctx, 10*time.Millisecond)
	}
}
