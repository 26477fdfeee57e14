package redisstore

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// subscribedNode returns the node of a cluster on which a topic is subscribed.
func subscribedNode(t *testing.T, c *testkit.Cluster, topic string) (found *testkit.Redis) {
	t.Helper()
	testkit.Until(t, "a subscription to "+topic, func() bool {
		for _, node := range c.Nodes {
			reply := node.MustDo("PUBSUB", "CHANNELS", topic)
			if names, _ := reply.AsStrSlice(); len(names) > 0 {
				found = node
			}
		}
		return found != nil
	})
	return found
}

// moveAway gives the fixture a channel whose slot is not on the node.
func (s *channelFixture) moveAway(node *testkit.Redis) {
	s.Helper()
	for {
		s.id = uuid.NewString()
		if _, err := node.Do("EXISTS", kv.MetaKey(s.id)); err != nil { // MOVED
			return
		}
	}
}

// The node with the instance's subscriptions leaves the cluster and keeps running,
// so that the connection stays open. Announcements, messages and replacements are
// received again.
func TestSubscriptionsLeaveRemovedNode(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t)
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	rec := subscribe(t, s.store)
	node := subscribedNode(t, c, kv.AnnounceTopic)
	s.moveAway(node)
	s.attach("a")
	socket := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c.Remove(node)

	// Another instance and a runtime that know the new cluster only.
	other := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	other.id = s.id
	runtime := other.attachRuntime("r")
	testkit.Until(t, "a new subscription", func() bool { return strings.HasPrefix(rec.recorded(), "up down up") })
	if err := other.store.Announce(t.Context(), "key:1"); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "an announcement", func() bool { return strings.Contains(rec.recorded(), "key:1") })
	testkit.Until(t, "the gap", func() bool { return strings.Contains(socket.recorded(), "gap") })
	other.send(runtime, "hello")
	testkit.Until(t, "a message", func() bool { return strings.Contains(socket.recorded(), ":hello") })
	other.attach("b")
	testkit.Until(t, "the replacement", func() bool { return strings.Contains(socket.recorded(), "replaced:b") })
}

// A runtime whose subscriptions were on the removed node receives audio again.
func TestRuntimeSubscriptionsLeaveRemovedNode(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t)
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	r := s.runtime("r")
	o := r.Observe("probe", "")
	defer func() { _ = o.Close(t.Context()) }()
	node := subscribedNode(t, c, kv.RuntimeTopic("probe"))
	s.moveAway(node)
	s.attach("a")
	channel, err := r.Attach(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.receive(channel, "connected")
	c.Remove(node)

	other := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	audio := make(chan calls.Delivery, 1)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	receiving.Go(func() {
		for {
			d, err := channel.Receive(t.Context())
			if err != nil {
				t.Errorf("receive: %v", err)
				return
			}
			if d.Position == "" {
				audio <- d
				return
			}
		}
	})
	testkit.Until(t, "audio", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = other.channels.SendAudio(ctx, s.id, []byte(`{"type":"audio","audio":{}}`))
		return len(audio) == 1 || t.Failed()
	})
}
