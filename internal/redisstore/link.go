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
	dialTimeout = 2 * time.Second
	probeEvery  = time.Second

	// keepAlive and commandTimeout together bound how long a connection whose
	// other end has vanished goes unnoticed.
	keepAlive = time.Second

	firstPause = 200 * time.Millisecond
	maxPause   = 5 * time.Second
)

// state is what is known about the store. It never changes: another follows.
type state struct {
	client rueidis.Client // nil while away
	err    error          // why it is away
	over   chan struct{}  // closed when another state follows
}

func (s *Store) enter(next state) {
	next.over = make(chan struct{})
	close(s.state.Swap(&next).over)
}

// run connects, watches and connects again. A lost connection is always made
// anew from the configured addresses, so that whatever came back in the old one's
// place is found: the same server, another topology, a promoted replica.
func (s *Store) run(ctx context.Context) {
	pauses := newPauses()
	reported := ""
	for ctx.Err() == nil {
		client, err := s.dial(ctx)
		if err == nil {
			reported = ""
			s.log.Info("key-value store connected", "mode", client.Mode())
			s.enter(state{client: client})
			since := time.Now()
			err = s.watch(ctx, client)
			if time.Since(since) > maxPause {
				pauses.Reset()
			}
		}
		s.enter(state{err: err})
		if client != nil {
			s.running.Go(client.Close) // takes a second where the other end is silent
		}
		if kind := kindOf(err); kind != reported && ctx.Err() == nil {
			reported = kind
			s.log.Warn("key-value store is away; trying again until it is back", "error", err)
		}
		_ = sleep.For(ctx, pauses.NextBackOff())
	}
}

// kindOf is what must change for the log to say more than that the store is
// away: texts of network errors vary, refusals of a server do not.
func kindOf(err error) string {
	if refusal, ok := rueidis.IsRedisErr(errors.Unwrap(err)); ok {
		return refusal.Error()
	}
	return "unreachable"
}

func newPauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval, pauses.Multiplier = firstPause, maxPause, 2
	return pauses
}

// dial returns a client that has been seen to serve.
func (s *Store) dial(ctx context.Context) (rueidis.Client, error) {
	client, err := rueidis.NewClient(s.opts.client())
	if err == nil {
		err = probe(ctx, client)
	}
	if err != nil {
		if client != nil {
			s.running.Go(client.Close)
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	return client, nil
}

// ClientOption is how others connect to the same store.
func (s *Store) ClientOption() rueidis.ClientOption { return s.opts.client() }

func (o Options) client() rueidis.ClientOption {
	option := redisconn.ClientOption(o.RedisOptions)
	option.ClientName = "telapi"
	option.Dialer = net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	option.ConnWriteTimeout = commandTimeout
	// Retryable commands are retried once, which covers a stale connection.
	option.RetryDelay = redisconn.RetryDelay(func(attempts int) time.Duration {
		if attempts > 1 {
			return -1
		}
		return 10 * time.Millisecond
	})
	return option
}

// watch returns when the store no longer serves. It looks every second, and
// whenever an operation failed.
func (s *Store) watch(ctx context.Context, client rueidis.Client) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	select {
	case <-s.suspect: // of an earlier connection
	default:
	}
	for {
		select {
		case <-tick.C:
		case <-s.suspect:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := probe(ctx, client); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
	}
}

// probe asks all nodes at once and is content with one good answer: a cluster
// that has lost a node serves the other nodes' keys.
func probe(ctx context.Context, client rueidis.Client) error {
	nodes := client.Nodes()
	answers := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() { answers <- probeNode(ctx, node, client.Mode()) }()
	}
	err := errors.New("no node is known")
	for range nodes {
		if err = <-answers; err == nil {
			return nil
		}
	}
	return err
}

func probeNode(ctx context.Context, node rueidis.Client, mode rueidis.ClientMode) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	if mode != rueidis.ClientModeCluster {
		// A write, since one that is full or read only answers a ping.
		return node.Do(ctx, node.B().Set().Key(kv.ProbeKey).Value("1").Px(probeEvery*10).Build()).Error()
	}
	info, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString()
	if err == nil && !strings.Contains(info, "cluster_state:ok") {
		err = errors.New("the cluster does not serve all its slots")
	}
	return err
}
