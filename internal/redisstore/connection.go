package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/background"
	"telapi/internal/kv"
)

const (
	dialTimeout   = 2 * time.Second
	probeInterval = time.Second

	// keepAlive and commandTimeout bound how long a dead connection goes unnoticed.
	keepAlive = time.Second

	retryDelay = 10 * time.Millisecond // before the second attempt of a retryable command
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
			s.closeClient(client)
		}
		s.setState(state{err: err})
		if cause := loggedCause(err); cause != logged && ctx.Err() == nil {
			logged = cause
			s.log.Warn("key-value store unavailable; retrying until it is back", "error", err)
		}
		_ = background.Sleep(ctx, delays.Next())
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

func newBackoff() *background.Backoff { return &background.Backoff{Min: minBackoff, Max: maxBackoff} }

// closeClient closes a client without waiting: that takes a second if the server
// does not answer.
func (s *Store) closeClient(client rueidis.Client) {
	if s.tasks.Go(context.Background(), func(context.Context) { client.Close() }) != nil {
		client.Close()
	}
}

// dial returns a client that has passed a probe. It has compared the clocks before, because
// scripts would have no deadlines otherwise.
func (s *Store) dial(ctx context.Context) (rueidis.Client, error) {
	client, err := rueidis.NewClient(s.opts.client())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err = s.probe(ctx, client); err == nil && !s.measureClock(ctx, client) {
		err = errNoClock
	}
	if err != nil {
		s.closeClient(client)
		return nil, fmt.Errorf("connect: %w", err)
	}
	return client, nil
}

// ClientOption returns the options with which other clients connect to the store.
func (s *Store) ClientOption() rueidis.ClientOption { return s.opts.client() }

func (o Options) client() rueidis.ClientOption {
	option := kv.ClientOption(o.RedisOptions)
	option.ClientName = "telapi"
	option.Dialer = net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	option.ConnWriteTimeout = commandTimeout
	if o.Dial != nil {
		option.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return o.Dial(ctx, addr)
		}
	}
	// Without pipelining the client would apply a caller's deadline to the
	// connection, and close it for all callers when the deadline passes.
	option.AlwaysPipelining = true
	// Retryable commands are retried once, which covers a stale connection.
	option.RetryDelay = kv.RetryDelay(func(attempts int) time.Duration {
		if attempts > 1 {
			return -1 // no more attempts
		}
		return retryDelay
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
	loggedFull := false
	checkCallbacks := true // the store may have been restarted
	select {
	case <-s.probes: // requested for an earlier connection
	default:
	}
	for {
		select {
		case <-tick.C:
		case <-s.probes:
		case <-ctx.Done():
			s.checkLast(context.WithoutCancel(ctx), client)
			return ctx.Err()
		}
		if err := s.probe(ctx, client); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if full := s.Full(); full != loggedFull {
			loggedFull = full
			s.logFull(full)
		}
		s.measureClock(ctx, client)
		if s.replaced(ctx, client) || checkCallbacks {
			checkCallbacks = s.checkAccepted(ctx) != nil
		}
	}
}

func (s *Store) logFull(full bool) {
	if full {
		s.log.Error("the key-value store is full: it rejects frames, callbacks and new sessions until data is removed", "remedy", s.FullRemedy())
	} else {
		s.log.Info("the key-value store accepts writes again")
	}
}

// measureClock reports whether the store's clock is known.
func (s *Store) measureClock(ctx context.Context, client rueidis.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	return s.clock.Measure(ctx, client)
}

// probe checks all nodes and succeeds as soon as one check does: a cluster that has
// lost a node still serves the other nodes' keys. A full store is not a failure.
func (s *Store) probe(ctx context.Context, client rueidis.Client) error {
	return s.onAnyNode(ctx, client, func(ctx context.Context, node rueidis.Client) error {
		err := probeNode(ctx, node, client.Mode())
		if kv.IsFull(err) {
			s.rejected.Store(time.Now().UnixNano())
			return nil
		}
		return err
	})
}

// onAnyNode runs an operation on all nodes at once. It returns after the first success, while
// the operation continues on the other nodes.
func (s *Store) onAnyNode(ctx context.Context, client rueidis.Client, run func(context.Context, rueidis.Client) error) error {
	nodes := client.Nodes()
	results := make(chan error, len(nodes))
	for _, node := range nodes {
		err := s.tasks.Go(ctx, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, commandTimeout)
			defer cancel()
			results <- run(ctx, node)
		})
		if err != nil {
			results <- err
		}
	}
	err := errNoNode
	for range nodes {
		select {
		case err = <-results:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err == nil {
			return nil
		}
	}
	return err
}

func probeNode(ctx context.Context, node rueidis.Client, mode rueidis.ClientMode) error {
	if mode != rueidis.ClientModeCluster {
		// A write, because a read-only server still answers PING. The TTL
		// removes the key if the service stops.
		return node.Do(ctx, node.B().Set().Key(kv.ProbeKey).Value("1").Px(probeInterval*10).Build()).Error()
	}
	info, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString()
	if err == nil && !strings.Contains(info, "cluster_state:ok") {
		err = errors.New("the cluster does not serve all slots")
	}
	return err
}

// Node is one server of the store, for diagnosis.
type Node struct {
	Name   string
	client rueidis.Client
}

// Nodes returns the connected servers.
func (s *Store) Nodes() (nodes []Node) {
	if client := s.state.Load().client; client != nil {
		for name, node := range client.Nodes() {
			nodes = append(nodes, Node{name, node})
		}
	}
	return nodes
}

// Clock returns the node's time.
func (n Node) Clock(ctx context.Context) (time.Time, error) { return kv.ServerTime(ctx, n.client) }

// Setting returns a value of the node's configuration. It is empty if the server
// does not reveal it, as hosted servers do.
func (n Node) Setting(ctx context.Context, name string) string {
	values, _ := n.client.Do(ctx, n.client.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	return values[name]
}

// Replicas returns the number of replicas that are connected to the node. isMaster is
// false if the node is a replica itself, or does not reveal it.
func (n Node) Replicas(ctx context.Context) (connected int, isMaster bool) {
	replication := replicationInfo(ctx, n.client)
	connected, _ = strconv.Atoi(replication["connected_slaves"])
	return connected, replication["role"] == "master"
}

// replicationInfo returns what a server reveals of its replication.
func replicationInfo(ctx context.Context, node rueidis.Client) map[string]string {
	info, _ := node.Do(ctx, node.B().Info().Section("replication").Build()).ToString()
	values := map[string]string{}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		values[name] = value
	}
	return values
}
