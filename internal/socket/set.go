// Package socket moves frames over WebSockets: it upgrades requests, batches reads and
// writes, limits what a client may send, and closes sockets that do not answer.
package socket

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/channel"
	"telapi/internal/ratelimit"
)

// Set owns the open sockets of this instance and their goroutines:
// net/http does not track connections after an upgrade.
type Set struct {
	budget *ratelimit.Budget // handshakes and open sockets
	queued *ratelimit.Budget // bytes in queues
	ctx    context.Context   // of the sockets' operations; canceled by Close
	cancel context.CancelFunc

	open    prometheus.Gauge
	closed  *prometheus.CounterVec
	dropped prometheus.Counter

	running sync.WaitGroup // handshakes, readers, writers and heartbeats

	mu      sync.Mutex
	sockets map[*socket]struct{}
	drained context.CancelFunc // called when no socket is left; nil before Drain
	ended   bool               // Close was called
}

// NewSet returns an empty set. Its sockets take their share of two budgets: the number of
// sockets, and the bytes of frames that wait for slow clients.
func NewSet(registry prometheus.Registerer, sockets, queued *ratelimit.Budget) *Set {
	auto := promauto.With(registry)
	s := &Set{
		budget:  sockets,
		queued:  queued,
		sockets: map[*socket]struct{}{},
		open:    auto.NewGauge(prometheus.GaugeOpts{Name: "telapi_sockets", Help: "Open WebSockets of this instance."}),
		closed:  auto.NewCounterVec(prometheus.CounterOpts{Name: "telapi_sockets_closed_total", Help: "Closed WebSockets by close code."}, []string{"code"}),
		dropped: auto.NewCounter(prometheus.CounterOpts{Name: "telapi_audio_dropped_total", Help: "Audio frames dropped because the client read too slowly."}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, code := range channel.CloseCodes() {
		s.closed.WithLabelValues(strconv.Itoa(int(code))) // start at 0, so that alerts see the first increase
	}
	return s
}

// begin adds a handshake to running. The caller calls running.Done when it has ended. begin
// returns false after Close.
func (s *Set) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.running.Add(1)
	return true
}

// start runs a socket. It returns false after Close. During a drain it closes the
// socket at once.
func (s *Set) start(socket *socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = socket.ws.Close()
		socket.connection.Close()
		return false
	}
	s.sockets[socket] = struct{}{}
	s.open.Inc()
	if s.drained != nil {
		socket.Close(channel.CloseRestart)
	}
	s.running.Go(socket.run) // not in the handler, so that net/http can free its buffers
	return true
}

func (s *Set) remove(socket *socket, code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sockets, socket)
	s.budget.Return(socket.Holder, 1)
	s.open.Dec()
	s.closed.WithLabelValues(strconv.Itoa(int(code))).Inc()
	if s.drained != nil && len(s.sockets) == 0 {
		s.drained()
	}
}

// Disconnect closes the connection of a session without a close frame, like a
// network failure. It returns false if this instance has no socket of the session.
func (s *Set) Disconnect(sessionID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.sockets {
		if socket.Session == sessionID {
			socket.disconnect()
			return true
		}
	}
	return false
}

// Drain closes all sockets with CloseRestart, at random times within window to keep
// clients from reconnecting all at once. It returns when no socket is left or
// ctx ends.
func (s *Set) Drain(ctx context.Context, window time.Duration) {
	s.mu.Lock()
	ctx, s.drained = context.WithCancel(ctx)
	for socket := range s.sockets {
		if c, ok := socket.connection.(interface{ Drain(within time.Duration) }); ok {
			c.Drain(window) // a call runtime can open its next connection before this one closes
		}
		time.AfterFunc(rand.N(window+1), func() { socket.Close(channel.CloseRestart) }) //nolint:gosec // jitter, not a secret
	}
	if len(s.sockets) == 0 {
		s.drained()
	}
	s.mu.Unlock()
	<-ctx.Done()
}

// Close disconnects the remaining sockets and waits until all have ended.
func (s *Set) Close() {
	s.cancel()
	s.mu.Lock()
	s.ended = true
	for socket := range s.sockets {
		socket.disconnect()
	}
	s.mu.Unlock()
	s.running.Wait()
}
