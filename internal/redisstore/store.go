// Package redisstore owns the key-value store: Redis or Valkey, alone or as a
// cluster, or the engine embedded in the process. It holds what instances share
// and may lose: counts, limits, announcements, live conversations.
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

// Options say where the store is. One address may be a single server or any
// node of a cluster, which is found out; several are nodes of a cluster.
type Options struct {
	config.RedisOptions
	Logger *slog.Logger // required
	// Patience is how long an operation waits for a store that is away. Servers
	// have none.
	Patience time.Duration
}

// Store is a connection to the key-value store that is made, watched and made
// again in the background. While it is away every operation fails at once with
// SERVICE_UNAVAILABLE; when it is back operations succeed again.
//
// All methods may be called from any goroutine.
type Store struct {
	opts    Options
	log     *slog.Logger
	scripts scripts
	topics  *pubsub.Hub
	state   atomic.Pointer[state]
	bounds  bounds
	suspect chan struct{} // that an operation failed, for the watch to look into
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open returns at once; the connection is made in the background. Connect waits
// for it.
func Open(opts Options) *Store {
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		opts:    opts,
		log:     opts.Logger.With("store", strings.Join(opts.Addrs, ",")),
		scripts: newScripts(),
		topics:  pubsub.New(),
		suspect: make(chan struct{}, 1),
		stop:    stop,
	}
	s.state.Store(&state{err: errors.New("not connected yet"), over: make(chan struct{})})
	s.running.Go(func() { s.run(ctx) })
	return s
}

// Close ends the connection and everything that runs for it.
func (s *Store) Close() {
	s.stop()
	s.running.Wait()
}

// Connect waits until the store is connected. When ctx ends first, its error
// says why it is not.
func (s *Store) Connect(ctx context.Context) error {
	_, err := s.connected(ctx)
	return err
}

func (s *Store) connected(ctx context.Context) (*state, error) {
	for {
		now := s.state.Load()
		if now.client != nil {
			return now, nil
		}
		select {
		case <-now.over:
		case <-ctx.Done():
			return nil, fault.Unavailable(subject, s.state.Load().err)
		}
	}
}

// Ping tells whether the store serves commands.
func (s *Store) Ping(ctx context.Context) error { return s.do(ctx, "ping", probe) }

// do runs one operation and explains its failure.
func (s *Store) do(ctx context.Context, doing string, operate func(context.Context, rueidis.Client) error) error {
	now := s.state.Load()
	if now.client == nil && s.opts.Patience > 0 {
		waiting, cancel := context.WithTimeout(ctx, s.opts.Patience)
		_ = s.Connect(waiting)
		cancel()
		now = s.state.Load()
	}
	if now.client == nil {
		return fault.Unavailable(subject, now.err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	}
	err := operate(s.bounds.next(), now.client)
	if err == nil {
		return nil
	}
	if !unavailable(err) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	select {
	case s.suspect <- struct{}{}:
	default: // somebody else's is being looked into
	}
	return fault.Unavailable(subject, fmt.Errorf("%s: %w", doing, err))
}

// awayCodes are the refusals by which a server says that it cannot serve now,
// in contrast to those that a fault of ours provokes.
var awayCodes = []string{"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOPERM", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS"}

func unavailable(err error) bool {
	code := redisconn.ErrorCode(err)
	return code == "" || slices.Contains(awayCodes, code)
}
