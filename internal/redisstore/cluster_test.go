package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testcalls"
	"telapi/test/testkit"
)

// A demoted master answers pings and rejects writes. The store reconnects, because
// the address may belong to another server by now.
func TestStoreLeavesDemotedMaster(t *testing.T) {
	t.Parallel()
	r, master := testkit.StartRedis(t), testkit.StartRedis(t)
	s, logs := connect(t, redisOptions(r))
	rec := subscribe(t, s)
	host, port, _ := strings.Cut(master.Addr(), ":")
	r.MustDo("REPLICAOF", host, port)
	testkit.Until(t, "the store is unavailable", func() bool { return fault.Is(save(t.Context(), s), fault.ServiceUnavailable) })
	testkit.Until(t, "a log line", func() bool { return logs.Count("READONLY") > 0 })
	r.MustDo("REPLICAOF", "NO", "ONE")
	testkit.Until(t, "the store is available", func() bool { return save(t.Context(), s) == nil })
	testkit.Until(t, "a new subscription", func() bool { return strings.HasPrefix(rec.recorded(), "up down up") })
}

func TestOffersAreAcceptedAfterClusterDown(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t, testkit.RedisDurable())
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	accepted := make(chan error, 1)
	runtime := s.runtime("r")
	go func() {
		_, err := testcalls.Accept(t.Context(), runtime, "r", s.isOwnOffer)
		accepted <- err
	}()
	var offers *testkit.Redis // the node with the stream of offers
	testkit.Until(t, "a blocked read of offers", func() bool {
		for _, node := range c.Nodes {
			reply := node.MustDo("INFO", "clients")
			if info, _ := reply.ToString(); strings.Contains(info, "blocked_clients:1") {
				offers = node
			}
		}
		return offers != nil
	})
	other := c.Nodes[0]
	if other == offers {
		other = c.Nodes[1]
	}
	c.SetNodeTimeout(3 * time.Second)
	other.Kill()
	testkit.Until(t, "the runtime gets CLUSTERDOWN", func() bool {
		reply := offers.MustDo("INFO", "errorstats")
		info, _ := reply.ToString()
		return strings.Contains(info, "errorstat_CLUSTERDOWN:")
	})
	other.Start()
	c.AwaitOK()
	testkit.Until(t, "an offer", func() bool {
		_, err := s.channels.Attach(t.Context(), s.attachment("a"))
		return err == nil && s.channels.Offer(t.Context(), wire.Offer{SessionID: s.id}) == nil
	})
	testkit.Must(t, <-accepted)
}

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
	testkit.Must(t, err)
	defer stop()
	c.Remove(node)

	// Another instance and a runtime that know the new cluster only.
	other := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	other.id = s.id
	runtime := other.attachRuntime("r")
	testkit.Until(t, "a new subscription", func() bool { return strings.HasPrefix(rec.recorded(), "up down up") })
	testkit.Must(t, other.store.Announce(t.Context(), "key:1"))
	testkit.Until(t, "an announcement", func() bool { return strings.Contains(rec.recorded(), "key:1") })
	testkit.Until(t, "the gap", func() bool { return strings.Contains(socket.recorded(), "gap") })
	other.send(runtime, "hello")
	testkit.Until(t, "a message", func() bool { return strings.Contains(socket.recorded(), ":hello") })
	other.attach("b")
	testkit.Until(t, "the replacement", func() bool { return strings.Contains(socket.recorded(), "replaced:b") })
}

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
	channel, err := r.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
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

// The slot of a live channel moves to another node of the cluster, key by key.
// Frames, messages and callbacks continue.
func TestChannelContinuesWhileItsSlotMoves(t *testing.T) {
	cluster := testkit.StartRedisCluster(t)
	d := newCallbackFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: cluster.Addrs()}}, nil)
	d.attach("a")
	reply := cluster.Nodes[0].MustDo("CLUSTER", "KEYSLOT", kv.MetaKey(d.id))
	number, err := reply.AsInt64()
	testkit.Must(t, err)
	slot := strconv.FormatInt(number, 10)
	source, target := slotNodes(t, cluster, slot)
	target.MustDo("CLUSTER", "SETSLOT", slot, "IMPORTING", nodeID(t, source))
	source.MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", nodeID(t, target))

	var rounds atomic.Int64
	stop := make(chan struct{})
	var talking sync.WaitGroup
	talking.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			d.expectFrame("a", fmt.Sprint(n), channel.Appended)
			d.expect(d.await(calls.AwaitOptions{}), fmt.Sprint("answer ", n), callback.Routed)
			d.channelFixture.send(d.Channel, fmt.Sprint(n))
			rounds.Add(1)
		}
	})
	progress := func() {
		t.Helper()
		before := rounds.Load()
		testkit.Until(t, "the conversation continues", func() bool { return rounds.Load() > before+3 })
	}
	progress() // before any key has moved
	host, port, _ := strings.Cut(target.Addr(), ":")
	for _, key := range kv.ChannelKeys(d.id) {
		source.MustDo("MIGRATE", host, port, key, "0", "5000")
	}
	progress() // the slot still belongs to the source
	for _, node := range append([]*testkit.Redis{target, source}, cluster.Nodes...) {
		node.MustDo("CLUSTER", "SETSLOT", slot, "NODE", nodeID(t, target))
	}
	progress()
	close(stop)
	talking.Wait()
}

// slotNodes returns the node that has keys in the slot, and another one.
func slotNodes(t *testing.T, cluster *testkit.Cluster, slot string) (source, target *testkit.Redis) {
	t.Helper()
	for _, node := range cluster.Nodes {
		reply := node.MustDo("CLUSTER", "COUNTKEYSINSLOT", slot)
		if n, err := reply.AsInt64(); err == nil && n > 0 {
			source = node
		} else {
			target = node
		}
	}
	if source == nil {
		t.Fatalf("no node has keys in slot %s", slot)
	}
	return source, target
}

func nodeID(t *testing.T, node *testkit.Redis) string {
	t.Helper()
	reply := node.MustDo("CLUSTER", "MYID")
	id, err := reply.ToString()
	testkit.Must(t, err)
	return id
}
