// Package redisstore accesses the key-value store: a Redis or Valkey server or
// cluster, or the engine embedded in the process. The store holds what instances
// share and can afford to lose: rate limits, announcements, leases and channels.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/pubsub"
	"telapi/internal/redisconn"
)

// subject is the store's name in public error texts.
const subject = "The key-value store"

var (
	errClosed          = errors.New("the store is closed")
	errNoNode          = errors.New("no node of the store is known")
	errUnexpectedReply = errors.New("a script returned an unexpected reply")
)

// Options configure a Store. A single address can be a server or any node of a
// cluster; several addresses are nodes of a cluster.
type Options struct {
	config.RedisOptions
	Logger *slog.Logger // required
	// ConnectTimeout is how long an operation waits for a connection. With 0 it
	// fails at once while the store is unavailable.
	ConnectTimeout time.Duration
}

// Store is a connection to the key-value store that is established, monitored and
// replaced in the background. While the store is unavailable, operations fail
// with fault.ServiceUnavailable. They succeed again once it is back.
//
// All methods are safe for concurrent use.
type Store struct {
	opts     Options
	log      *slog.Logger
	topics   *pubsub.Hub
	state    atomic.Pointer[state]
	timeouts timeouts
	probes   chan struct{} // requests for an early probe

	mu      sync.Mutex // guards starting goroutines against Close
	closing context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open returns a store that connects in the background. Connect waits for it.
func Open(opts Options) *Store {
	closing, stop := context.WithCancel(context.Background())
	s := &Store{
		opts:    opts,
		log:     opts.Logger.With("store", strings.Join(opts.Addrs, ",")),
		topics:  pubsub.New(),
		probes:  make(chan struct{}, 1),
		closing: closing,
		stop:    stop,
	}
	s.state.Store(&state{err: errors.New("not connected yet"), replaced: make(chan struct{})})
	s.start(s.run)
	return s
}

// Close closes the connection and waits for the store's goroutines.
func (s *Store) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
}

// start runs f in a goroutine that Close waits for. The context ends with Close.
// After Close it returns false and f does not run.
func (s *Store) start(f func(closing context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return false
	}
	s.running.Go(func() { f(s.closing) })
	return true
}

// Connect waits until the store is connected. If ctx ends first, the error says
// why it is not.
func (s *Store) Connect(ctx context.Context) error {
	_, err := s.connected(ctx)
	return err
}

func (s *Store) connected(ctx context.Context) (*state, error) {
	for {
		current := s.state.Load()
		if current.client != nil {
			return current, nil
		}
		select {
		case <-current.replaced:
		case <-ctx.Done():
			return nil, fault.Unavailable(subject, s.state.Load().err)
		}
	}
}

// Ping returns an error unless the store executes commands.
func (s *Store) Ping(ctx context.Context) error { return s.do(ctx, "ping", s.probe) }

// do runs an operation within commandTimeout and the caller's deadline. It returns
// fault.ServiceUnavailable if the store is the cause of a failure.
func (s *Store) do(caller context.Context, doing string, operation func(context.Context, rueidis.Client) error) error {
	current := s.state.Load()
	if current.client == nil && s.opts.ConnectTimeout > 0 {
		waiting, cancel := context.WithTimeout(caller, s.opts.ConnectTimeout)
		_ = s.Connect(waiting)
		cancel()
		current = s.state.Load()
	}
	if current.client == nil {
		return fault.Unavailable(subject, current.err)
	}
	if caller.Err() != nil {
		return fmt.Errorf("%s: %w", doing, caller.Err())
	}
	ctx, cancel := s.timeouts.context(caller)
	defer cancel()
	err := operation(ctx, current.client)
	if err == nil {
		return nil
	}
	if !unavailable(err) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	s.requestProbe()
	return fault.Unavailable(subject, fmt.Errorf("%s: %w", doing, err))
}

// unavailableCodes are the error codes of a server that cannot serve now. Other
// codes are caused by our own commands.
var unavailableCodes = []string{"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOPERM", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS"}

func unavailable(err error) bool {
	code := redisconn.ErrorCode(err)
	return code == "" || slices.Contains(unavailableCodes, code)
}
