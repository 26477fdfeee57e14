// Package redisstore accesses the key-value store: a Redis or Valkey server or
// cluster, or the engine embedded in the process. It holds shared state that need
// not be durable: rate limits, announcements, leases and channels.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/background"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
)

// storeName is the store's name in public error texts.
const storeName = "The key-value store"

var (
	errNoNode  = errors.New("no store node is known")
	errNoClock = errors.New("the store does not tell its time")
)

// Options configure a Store. A single address can be a server or any node of a
// cluster; several addresses are nodes of a cluster.
type Options struct {
	config.RedisOptions
	Logger *slog.Logger // required
	// ConnectTimeout is how long an operation waits for a connection. With 0 it
	// fails at once while the store is unavailable.
	ConnectTimeout time.Duration
	// Dial replaces the network; nil dials TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// MinReplicas is the number of replicas that must confirm frames, callbacks and ends
	// of channels before they are acknowledged.
	MinReplicas int
}

// Store is a connection to the key-value store that is established, monitored and
// replaced in the background. While the store is unavailable, operations fail
// with fault.ServiceUnavailable. They succeed again once it is back.
//
// All methods are safe for concurrent use.
type Store struct {
	opts       Options
	log        *slog.Logger
	topics     *kv.Topics
	state      atomic.Pointer[state]
	clock      kv.Clock      // of the servers
	probes     chan struct{} // requests for an early probe
	rejected   atomic.Int64  // when the store was last full, in Unix ns
	tasks      *background.Group
	scripts    map[string]*rueidis.Lua         // the channel scripts
	replicated map[string]*kv.ReplicatedScript // take precedence over scripts
	accepted   acceptedCallbacks

	replicationIDs map[string]bool // of all servers so far; used by monitor only
}

// Open returns a store that connects in the background. Connect waits for it.
func Open(opts Options) *Store {
	s := &Store{
		opts:       opts,
		log:        opts.Logger.With("store", strings.Join(opts.Addrs, ",")),
		topics:     kv.NewTopics(),
		probes:     make(chan struct{}, 1),
		tasks:      background.NewGroup(),
		scripts:    map[string]*rueidis.Lua{},
		replicated: kv.ReplicatedScripts(opts.MinReplicas, "frame", "callback", "stream", "end_channel"),

		replicationIDs: map[string]bool{},
	}
	for _, name := range []string{"connect", "frame", "renew"} {
		s.scripts[name] = rueidis.NewLuaScript(kv.Script(name))
	}
	// These scripts are idempotent and retried after a lost reply.
	for _, name := range []string{"callback", "check_callback", "check_connect", "check_credential", "detach", "end_channel", "since", "stream"} {
		s.scripts[name] = rueidis.NewLuaScriptRetryable(kv.Script(name))
	}
	s.state.Store(&state{err: errors.New("not connected yet"), replaced: make(chan struct{})})
	_ = s.tasks.Go(context.Background(), s.run) // the group is open
	return s
}

// Close closes the connection and waits for the store's goroutines.
func (s *Store) Close() { s.tasks.Close() }

// Connect waits until the store is connected. If ctx ends first, it returns the
// last connection error.
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
			return nil, fault.Unavailable(storeName, s.state.Load().err)
		}
	}
}

// Ping returns an error unless the store executes commands.
func (s *Store) Ping(ctx context.Context) error { return s.do(ctx, "ping", s.probe) }

// errFull is returned if the store has no memory left. The connection is not replaced,
// because reads and removals work.
var errFull = fault.New(fault.ServiceUnavailable, "The key-value store is full. Retry in a few seconds.").WithRetryAfter(5 * time.Second)

// fullMemory is how long the store counts as full after it has rejected a write. It
// is longer than the interval between probes.
const fullMemory = 3 * probeInterval

// Full reports whether the store has just rejected a write because it has no memory left.
func (s *Store) Full() bool { return time.Since(time.Unix(0, s.rejected.Load())) < fullMemory }

// FullRemedy returns what the operator of a full store can do.
func (s *Store) FullRemedy() string {
	setting := "maxmemory of Redis"
	if s.opts.Embedded {
		setting = "EMBEDDED_KV_MAX_BYTES"
	}
	return "start a call runtime that processes the waiting entries, or raise " + setting
}

// do runs an operation within commandTimeout and the caller's deadline. It returns
// fault.ServiceUnavailable if the store is the cause of a failure. If the store is full, the
// operation had no effect.
func (s *Store) do(caller context.Context, operation string, run func(context.Context, rueidis.Client) error) error {
	current := s.state.Load()
	if current.client == nil && s.opts.ConnectTimeout > 0 {
		waiting, cancel := context.WithTimeout(caller, s.opts.ConnectTimeout)
		_ = s.Connect(waiting)
		cancel()
		current = s.state.Load()
	}
	if current.client == nil {
		return fault.Unavailable(storeName, fmt.Errorf("%w: %w", channel.ErrNotSent, current.err))
	}
	if caller.Err() != nil {
		return fmt.Errorf("%s: %w", operation, caller.Err())
	}
	ctx, cancel := operationContext(caller)
	defer cancel()
	err := run(ctx, current.client)
	if err == nil {
		return nil
	}
	if kv.IsFull(err) {
		s.rejected.Store(time.Now().UnixNano())
		return errFull.WithCause(fmt.Errorf("%s: %w", operation, err))
	}
	if !unavailable(err) {
		return fmt.Errorf("%s: %w", operation, err)
	}
	s.requestProbe()
	return fault.Unavailable(storeName, fmt.Errorf("%s: %w", operation, err))
}

// query is do for an operation that returns a value.
func query[T any](ctx context.Context, s *Store, operation string, run func(context.Context, rueidis.Client) (T, error)) (value T, err error) {
	err = s.do(ctx, operation, func(ctx context.Context, client rueidis.Client) (err error) {
		value, err = run(ctx, client)
		return err
	})
	return value, err
}

// runScript runs a channel script and parses its reply. If it fails because of its
// deadline, the script has no effect later.
func runScript[T any](ctx context.Context, s *Store, operation, script, channelID string, parse func(rueidis.RedisResult) (T, error), args ...string) (T, error) {
	return query(ctx, s, operation, func(ctx context.Context, client rueidis.Client) (value T, err error) {
		deadline, _ := ctx.Deadline()
		args = append(args, "")
		for {
			args[len(args)-1] = s.clock.Window(channelID, deadline)
			value, err = parse(s.exec(ctx, client, script, channelID, args))
			switch kv.ErrorCode(err) { // in these cases the script did not run
			case "TRYAGAIN": // a cluster is moving the keys one by one
			case "CLOCK":
				s.clock.Forget()
				s.measureClock(ctx, client)
			default:
				return value, err
			}
			if background.Sleep(ctx, tryAgainDelay) != nil {
				return value, err
			}
		}
	})
}

func (s *Store) exec(ctx context.Context, client rueidis.Client, script, channelID string, args []string) rueidis.RedisResult {
	if replicated := s.replicated[script]; replicated != nil {
		return replicated.Exec(ctx, client, channelID, args)
	}
	return s.scripts[script].Exec(ctx, client, kv.ChannelKeys(channelID), args)
}

// unavailable reports whether the store is the cause of an error: it is unreachable,
// temporarily unavailable, or rejects the configured user. Other codes indicate an
// invalid command.
func unavailable(err error) bool {
	switch kv.ErrorCode(err) {
	case "", "NOAUTH", "NOPERM", "WRONGPASS":
		return true
	}
	return kv.IsTemporary(err)
}

const (
	// commandTimeout limits the duration of an operation.
	commandTimeout = 3 * time.Second
	// tryAgainDelay is the time between two attempts of a script that did not run.
	tryAgainDelay = 20 * time.Millisecond
)

// operationContext returns a context that ends after commandTimeout, or at the caller's
// deadline if that is earlier. It is not cancelled together with the caller: the
// operation may be dialing a connection that other callers wait for.
func operationContext(caller context.Context) (context.Context, context.CancelFunc) {
	deadline := time.Now().Add(commandTimeout)
	if earlier, ok := caller.Deadline(); ok && earlier.Before(deadline) {
		deadline = earlier
	}
	return context.WithDeadline(context.WithoutCancel(caller), deadline)
}
