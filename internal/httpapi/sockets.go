package httpapi

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/channel"
)

// sockets knows every open socket of this instance, so that a drain can end
// them: net/http forgets a connection that was upgraded.
type sockets struct {
	ctx     context.Context // of work that belongs to no request
	open    prometheus.Gauge
	closed  *prometheus.CounterVec
	dropped prometheus.Counter

	mu   sync.Mutex
	all  map[*pump]struct{}
	gone context.CancelFunc // called when no socket is left; nil: there is no drain
}

func newSockets(registry prometheus.Registerer) *sockets {
	auto := promauto.With(registry)
	s := &sockets{
		ctx:     context.Background(),
		all:     map[*pump]struct{}{},
		open:    auto.NewGauge(prometheus.GaugeOpts{Name: "telapi_sockets", Help: "Open sockets of this instance."}),
		closed:  auto.NewCounterVec(prometheus.CounterOpts{Name: "telapi_sockets_closed_total", Help: "Sockets that ended, by close code."}, []string{"code"}),
		dropped: auto.NewCounter(prometheus.CounterOpts{Name: "telapi_audio_dropped_total", Help: "Audio frames dropped because a reader was slow."}),
	}
	for _, code := range channel.CloseCodes() {
		s.closed.WithLabelValues(strconv.Itoa(int(code))) // from 0, so that the first one is an increase
	}
	return s
}

func (s *sockets) add(p *pump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[p] = struct{}{}
	s.open.Inc()
	if s.gone != nil {
		p.Close(channel.CloseRestart)
	}
}

func (s *sockets) remove(p *pump, code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, p)
	s.open.Dec()
	s.closed.WithLabelValues(strconv.Itoa(int(code))).Inc()
	s.noteGone()
}

// noteGone ends the drain with the last socket. The caller holds mu.
func (s *sockets) noteGone() {
	if s.gone != nil && len(s.all) == 0 {
		s.gone()
	}
}

// cut ends a session's socket as a lost network does, without a close frame;
// false: there is none here.
func (s *sockets) cut(sessionID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.all {
		if p.channel.SessionID() == sessionID {
			_ = p.conn.NetConn().Close() // the reader sees it and ends
			return true
		}
	}
	return false
}

// Drain ends every answer that would go on, and closes every socket with
// "restart", spread over a window so that the other instances are not stormed, and
// waits until all are gone or ctx ends.
func (s *Server) Drain(ctx context.Context, window time.Duration) {
	s.endStreams()
	s.sockets.mu.Lock()
	ctx, s.sockets.gone = context.WithCancel(ctx)
	for p := range s.sockets.all {
		time.AfterFunc(rand.N(window+1), func() { p.Close(channel.CloseRestart) }) //nolint:gosec // jitter, not a secret
	}
	s.sockets.noteGone()
	s.sockets.mu.Unlock()
	<-ctx.Done()
}
