package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// startReplicated starts a server and a replica of it.
func startReplicated(t *testing.T) (master, replica *testkit.Redis) {
	t.Helper()
	master, replica = testkit.StartRedis(t, testkit.RedisArgs("--repl-diskless-sync-delay", "0")), testkit.StartRedis(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica.MustDo("REPLICAOF", host, port)
	testkit.Until(t, "replication", func() bool {
		reply := replica.MustDo("INFO", "replication")
		info, _ := reply.ToString()
		return strings.Contains(info, "master_link_status:up")
	})
	return master, replica
}

func TestFramesAndCallbacksWaitForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	d := newCallbackFixture(t, opts, nil)
	d.attach("a")
	if got := d.frame("a", "1"); got != channel.Appended {
		t.Fatalf("frame: %s, want %s", got, channel.Appended)
	}
	item := d.await(calls.AwaitOptions{})
	replica.Freeze()
	frame := []channel.Frame{{MessageID: "2", Entry: d.entry(wire.KindFrame, "2")}}
	for range 2 { // the second one is a duplicate, which the replica does not have either
		if got, _, err := d.channels.Append(t.Context(), d.owner("a"), frame); !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("frame without the replica: %v, %v", got, err)
		}
	}
	if got, err := d.callbacks.Deliver(t.Context(), d.delivery(item, "x")); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("callback without the replica: %+v, %v", got, err)
	}
	replica.Thaw()
	testkit.Until(t, "the frame is a duplicate", func() bool {
		got, _, err := d.channels.Append(t.Context(), d.owner("a"), frame)
		return err == nil && got[0] == channel.Duplicate
	})
	d.expect(item, "x", callback.Duplicate)
	if got, want := d.events(), "connected 1 2 x"; got != want {
		t.Errorf("the stream has %q, want %s", got, want)
	}
}

func TestRuntimeWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	s := newChannelFixture(t, redisOptions(master), nil)
	s.attach("a")
	c, err := s.runtime("r", func(o *calls.Options) { o.MinReplicas = 1 }).Attach(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.send(c, "1")
	_, position := s.receive(c, "connected")
	replica.Freeze()
	message := wire.ChannelMessage{Type: wire.TypeChat, MessageID: "m", Chat: jsontext.Value(`{"text":"2"}`)}
	for name, operate := range map[string]func(context.Context) error{
		"send":   func(ctx context.Context) error { return c.Send(ctx, message) },
		"commit": func(ctx context.Context) error { return c.Commit(ctx, position) },
		"await": func(ctx context.Context) error {
			_, err := c.Await(ctx, calls.AwaitOptions{WorkItemID: "w"})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := operate(ctx); err == nil || errors.Is(err, calls.ErrLost) {
			t.Errorf("%s without the replica: %v", name, err)
		}
		cancel()
	}
	history := func() string {
		messages, ok, err := s.channels.Since(t.Context(), s.id, channel.Cursor{Epoch: s.attach("b").Head.Epoch})
		if !ok || err != nil {
			t.Errorf("history: complete %t, %v", ok, err)
		}
		return texts(messages)
	}
	if got := history(); got != "1" {
		t.Errorf("history %q without the replica, want 1: the browser could not resume after a failover", got)
	}
	sent := make(chan error, 1)
	go func() { sent <- c.Send(t.Context(), message) }() // waits
	replica.Thaw()
	if err := <-sent; err != nil {
		t.Errorf("send with the replica: %v", err)
	}
	if err := c.Commit(t.Context(), position); err != nil {
		t.Errorf("commit with the replica: %v", err)
	}
	if got := history(); got != "1 2" {
		t.Errorf("history %q, want 1 2", got)
	}
}

// In a cluster each channel waits for the replicas of its own node, and follows its
// slot to another node.
func TestReplicasOfClusterNode(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t)
	replica := c.AddReplica(c.Nodes[0])
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}, MinReplicas: 1}, nil)
	frame := func(name string) error {
		_, _, err := s.channels.Append(t.Context(), s.owner("a"), []channel.Frame{{MessageID: name, Entry: s.entry(wire.KindFrame, name)}})
		return err
	}
	s.moveAway(c.Nodes[0])
	s.attach("a")
	if err := frame("1"); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("frame on a node without replicas: %v", err)
	}
	s.moveAway(c.Nodes[1])
	for { // to the first node
		if _, err := c.Nodes[0].Do("EXISTS", kv.MetaKey(s.id)); err == nil {
			break
		}
		s.moveAway(c.Nodes[1])
	}
	s.attach("a")
	if err := frame("1"); err != nil {
		t.Errorf("frame on a node with a replica: %v", err)
	}
	replica.MustDo("CLUSTER", "FAILOVER")
	testkit.Until(t, "the replica is a master with a replica", func() bool {
		reply := replica.MustDo("INFO", "replication")
		info, _ := reply.ToString()
		return strings.Contains(info, "role:master") && strings.Contains(info, "state=online")
	})
	testkit.Until(t, "a frame after the failover", func() bool { return frame("2") == nil })
}
