package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/redisconn"
	"telapi/internal/sleep"
)

const (
	dialTimeout   = 2 * time.Second
	probeInterval = time.Second

	// keepAlive and commandTimeout bound how long a dead connection goes unnoticed.
	keepAlive = time.Second

	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// state is the connection to the store, or why there is none. It is immutable.
type state struct {
	client   rueidis.Client // nil while the store is unavailable
	err      error          // why it is unavailable
	replaced chan struct{}  // closed when another state replaces this one
}

func (s *Store) setState(next state) {
	next.replaced = make(chan struct{})
	close(s.state.Swap(&next).replaced)
}

// run connects and reconnects until ctx ends. It always dials the configured
// addresses again, because a restarted store can have another topology or master.
func (s *Store) run(ctx context.Context) {
	delays := newBackoff()
	logged := ""
	for ctx.Err() == nil {
		client, err := s.dial(ctx)
		if err == nil {
			logged = ""
			s.log.Info("key-value store connected", "mode", client.Mode())
			s.setState(state{client: client})
			since := time.Now()
			err = s.monitor(ctx, client)
			if time.Since(since) > maxBackoff {
				delays.Reset()
			}
			s.running.Go(client.Close) // takes a second if the server does not answer
		}
		s.setState(state{err: err})
		if cause := loggedCause(err); cause != logged && ctx.Err() == nil {
			logged = cause
			s.log.Warn("key-value store unavailable; retrying until it is back", "error", err)
		}
		_ = sleep.For(ctx, delays.NextBackOff())
	}
}

// loggedCause returns the part of an error whose change is logged. The texts of
// network errors vary; error replies of a server do not.
func loggedCause(err error) string {
	if reply, ok := rueidis.IsRedisErr(errors.Unwrap(err)); ok {
		return reply.Error()
	}
	return "unreachable"
}

func newBackoff() *backoff.ExponentialBackOff {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.Multiplier = minBackoff, maxBackoff, 2
	return delays
}

// dial returns a client that has passed a probe.
func (s *Store) dial(ctx context.Context) (rueidis.Client, error) {
	client, err := rueidis.NewClient(s.opts.client())
	if err == nil {
		if err = s.probe(ctx, client); err != nil {
			s.running.Go(client.Close)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return client, nil
}

// ClientOption returns the options with which other clients connect to the store.
func (s *Store) ClientOption() rueidis.ClientOption { return s.opts.client() }

func (o Options) client() rueidis.ClientOption {
	option := redisconn.ClientOption(o.RedisOptions)
	option.ClientName = "telapi"
	option.Dialer = net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	option.ConnWriteTimeout = commandTimeout
	// Without pipelining the client would apply a caller's deadline to the
	// connection, and close it for all callers when the deadline passes.
	option.AlwaysPipelining = true
	// Retryable commands are retried once, which covers a stale connection.
	option.RetryDelay = redisconn.RetryDelay(func(attempts int) time.Duration {
		if attempts > 1 {
			return -1
		}
		return 10 * time.Millisecond
	})
	return option
}

// requestProbe makes monitor probe the store now.
func (s *Store) requestProbe() {
	select {
	case s.probes <- struct{}{}:
	default: // requested already
	}
}

// monitor probes the store every probeInterval and on request. It returns when a
// probe fails.
func (s *Store) monitor(ctx context.Context, client rueidis.Client) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	select {
	case <-s.probes: // requested for an earlier connection
	default:
	}
	for {
		select {
		case <-tick.C:
		case <-s.probes:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.probe(ctx, client); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
	}
}

// probe checks all nodes at once and succeeds with the first good answer: a
// cluster that has lost a node still serves the other nodes' keys.
func (s *Store) probe(ctx context.Context, client rueidis.Client) error {
	nodes := client.Nodes()
	results := make(chan error, len(nodes))
	for _, node := range nodes {
		if !s.start(func(context.Context) { results <- probeNode(ctx, node, client.Mode()) }) {
			results <- errClosed
		}
	}
	err := errNoNode
	for range nodes {
		if err = <-results; err == nil {
			return nil
		}
	}
	return err
}

func probeNode(ctx context.Context, node rueidis.Client, mode rueidis.ClientMode) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	if mode != rueidis.ClientModeCluster {
		// A write, because a full or read-only server still answers PING.
		return node.Do(ctx, node.B().Set().Key(kv.ProbeKey).Value("1").Px(probeInterval*10).Build()).Error()
	}
	info, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString()
	if err == nil && !strings.Contains(info, "cluster_state:ok") {
		err = errors.New("the cluster does not serve all slots")
	}
	return err
}
