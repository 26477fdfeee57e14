// Package runtimeapi is the service's side of /ws/runtime, the WebSocket of call runtimes.
// It decodes requests, runs them with package calls, and pushes what happens on claimed
// channels.
package runtimeapi

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/background"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/redact"
)

const (
	// Lease is how long a claim outlives its last renewal. It only matters if no instance
	// is left to release the claims of a dead connection.
	Lease = time.Minute
	// tickInterval is how often lifetimes are extended and credentials checked.
	tickInterval = 300 * time.Millisecond
	// instanceGrace is how long the connections of a dead instance count as alive. Another
	// instance notices their end one interval later, so that their sessions are offered within
	// 2 s after the time that their runtimes have to resume; later if the store was slow.
	instanceGrace = 2*time.Second - 2*tickInterval
	// connectRetry is the time between two attempts to connect to the store.
	connectRetry = 500 * time.Millisecond
	// othersFirst is how long a session that was released is kept from the connection that had it.
	othersFirst = time.Second
	// storeTimeout bounds the bookkeeping of connections.
	storeTimeout = 2 * time.Second
	// longestRound is the time in which every instance has kept its connections after an outage:
	// a call that fails, the pause, and one that succeeds late.
	longestRound = 2*storeTimeout + tickInterval
)

// Limits of a connection.
const (
	frameBytes    = wire.MaxRequest
	helloBytes    = 8 << 20 // of the first frame
	maxMessages   = 64      // in one send
	maxReports    = 100
	maxAccepts    = 10_000
	pushedEntries = 256
	pushedBytes   = 1 << 20
	maxRequests   = 1024 // queued
	// QueuedBytes bounds the frames that wait for a runtime that reads slowly.
	QueuedBytes = 16 << 20
	// pauseBytes is how much may be queued before no entries are pushed.
	pauseBytes   = 1 << 20
	PingInterval = 10 * time.Second
	helloTimeout = 5 * time.Second

	requestBudget = 256 << 20 // bytes of queued requests of the instance
)

// Lengths with which the token of a claim has 64 bytes: Redis stores the fields of an ended channel
// in half the memory if no value is longer.
const (
	shortMAC    = 22 // of the ID of a connection, and the secret of an opened claim: 132 bits
	tokenSuffix = 14 // tells the claims of a connection apart
)

// Deps are the dependencies of a Service.
type Deps struct {
	Connect   func() (*calls.Runtime, error) // to the store
	Secrets   auth.Secrets                   // from which credentials and claims are derived
	Instance  string
	TeamShare int
	Log       *slog.Logger
	Registry  *prometheus.Registry
}

// Service runs the connections of call runtimes of this instance.
type Service struct {
	Deps
	calls        atomic.Pointer[calls.Runtime] // nil before the store is connected
	requestBytes *ratelimit.Budget             // of queued requests

	othersFirst time.Duration
	commitDelay time.Duration

	slow atomic.Bool // the store: rounds of keepAlive are late or fail

	mu    sync.Mutex
	conns map[*Conn]struct{} // those that have said hello

	claimGauge, connectionGauge prometheus.Gauge
	audioDropped                prometheus.Counter
}

// New returns a service. The caller starts Run.
func New(deps Deps) *Service {
	auto := promauto.With(deps.Registry)
	return &Service{
		Deps: deps, conns: map[*Conn]struct{}{}, othersFirst: othersFirst, commitDelay: commitDelay,
		requestBytes:    ratelimit.NewBudget(deps.Registry, "runtime_request_bytes", "bytes for requests of call runtimes", requestBudget, deps.TeamShare),
		connectionGauge: auto.NewGauge(prometheus.GaugeOpts{Name: "telapi_runtime_connections", Help: "Connections of call runtimes to this instance."}),
		claimGauge:      auto.NewGauge(prometheus.GaugeOpts{Name: "telapi_runtime_claims", Help: "Channels that call runtimes have claimed through this instance."}),
		audioDropped:    auto.NewCounter(prometheus.CounterOpts{Name: "telapi_runtime_audio_dropped_total", Help: "Audio frames dropped because a runtime had too many requests in progress or read too slowly."}),
	}
}

// Ready reports whether runtimes can connect.
func (s *Service) Ready() bool { return s.calls.Load() != nil }

// Runtime returns what all connections use to read and change channels. It fails while the store
// is not connected.
func (s *Service) Runtime() (*calls.Runtime, error) {
	if r := s.calls.Load(); r != nil {
		return r, nil
	}
	return nil, fault.Unavailable("The key-value store", nil)
}

// Run keeps the connections alive in the store and releases the claims of dead ones, until
// ctx ends.
func (s *Service) Run(ctx context.Context) {
	r, err := s.Connect()
	for ; err != nil; r, err = s.Connect() {
		if background.Sleep(ctx, connectRetry) != nil {
			return
		}
	}
	s.calls.Store(r)
	defer r.Close()
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() {
		for background.Sleep(ctx, tickInterval) == nil {
			s.checkCredentials(ctx)
		}
	})
	var rounds rounds
	var sweeping sync.Mutex
	for ; ctx.Err() == nil; _ = background.Sleep(ctx, tickInterval) {
		expired, err := s.keepAlive(ctx, r)
		sweep, slow := rounds.end(time.Now(), err)
		s.slow.Store(slow)
		if sweep && len(expired) > 0 && sweeping.TryLock() {
			working.Go(func() {
				defer sweeping.Unlock()
				s.sweep(ctx, r, expired)
			})
		}
	}
}

// rounds decides when to release the claims of connections that have expired: not soon after
// an outage, which may have been longer for other instances.
type rounds struct {
	last      time.Time // end of the last round that succeeded
	late      bool      // that round was late
	sweepFrom time.Time
}

// end ends a round of keepAlive. It reports whether to sweep, and whether rounds are late or fail.
// The first late round is taken for an outage. More of them are not: otherwise nothing would be
// swept while the store is slow.
func (r *rounds) end(now time.Time, err error) (sweep, slow bool) {
	if err != nil {
		r.late = false
		return false, true
	}
	late := now.Sub(r.last) > instanceGrace-2*tickInterval
	if late && !r.late {
		r.sweepFrom = now.Add(longestRound)
	}
	r.last, r.late = now, late
	return now.After(r.sweepFrom), late
}

func (s *Service) list() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// lifetime returns how long a connection lives until its lifetime is extended again. While the
// store is slow, that takes longer, and other instances sweep nevertheless.
func (s *Service) lifetime(c *Conn) calls.Lifetime {
	left := c.resume + instanceGrace
	if s.slow.Load() {
		left += storeTimeout
	}
	return calls.Lifetime{ConnectionID: c.id, Left: left}
}

// keepAlive extends the lifetimes of this instance's connections. It returns some of all
// connections that have expired.
func (s *Service) keepAlive(ctx context.Context, r *calls.Runtime) (expired []string, err error) {
	conns := s.list()
	lifetimes, byID := make([]calls.Lifetime, len(conns)), make(map[string]*Conn, len(conns))
	for i, c := range conns {
		lifetimes[i], byID[c.id] = s.lifetime(c), c
	}
	keeping, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	unknown, expired, err := r.KeepConnections(keeping, lifetimes...)
	for _, id := range unknown { // another instance took it for dead, or the store lost it
		byID[id].restore(ctx)
	}
	return expired, err
}

// sweep releases the claims of expired connections.
func (s *Service) sweep(ctx context.Context, r *calls.Runtime, expired []string) {
	ctx, cancel := context.WithTimeout(ctx, 5*storeTimeout)
	defer cancel()
	var sweeping sync.WaitGroup
	for _, id := range expired {
		sweeping.Go(func() {
			if err := r.Sweep(ctx, id); err != nil && ctx.Err() == nil {
				s.Log.WarnContext(ctx, "releasing the claims of a runtime that has disconnected failed; retrying", "error", err)
			}
		})
	}
	sweeping.Wait()
}

// checkCredentials closes connections whose credential is no longer valid.
func (s *Service) checkCredentials(ctx context.Context) {
	for _, c := range s.list() {
		checking, cancel := context.WithTimeout(ctx, storeTimeout)
		_, err := c.authorize(checking, c.key)
		cancel()
		if rejected(err) {
			c.fail(err, channel.CloseUnauthorized)
		}
	}
}

// rejected reports whether a credential is invalid, rather than not verifiable now.
func rejected(err error) bool {
	return fault.Is(err, fault.Unauthorized) || fault.Is(err, fault.Forbidden)
}

// connectionID returns the ID of a connection of a team. It shows whose connection it is, so
// that no team can release the claims of another one.
func connectionID(key redact.Secret, team, random string) string {
	return random + "." + auth.Derive(key, "connection", team, random)[:shortMAC]
}

// isConnectionID reports whether an ID is that of a connection of a team.
func (s *Service) isConnectionID(id, team string) bool {
	random, _, _ := strings.Cut(id, ".")
	return id == connectionID(s.Secrets.Current, team, random) || s.Secrets.Previous != "" && id == connectionID(s.Secrets.Previous, team, random)
}

// Params describe a connection.
type Params struct {
	// Authenticate verifies a credential. An empty one stands for that of the handshake.
	Authenticate func(ctx context.Context, key string) (auth.Principal, error)
	Identified   bool   // the handshake had a valid credential
	BaseURL      string // under which providers reach the service
}

// Open returns a connection. It fails while the store is not connected.
func (s *Service) Open(p Params) (*Conn, error) {
	r, err := s.Runtime()
	if err != nil {
		return nil, err
	}
	c := &Conn{
		service: s, calls: r, params: p,
		claims: map[string]*claim{}, queues: map[string]*queue{}, slots: make(chan struct{}, maxRequests), accepts: map[*calls.Demand]int64{},
		released: map[string]bool{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}
