package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// The slot of a live channel moves to another node of the cluster, key by key.
// Frames, messages and callbacks continue.
func TestChannelContinuesWhileItsSlotMoves(t *testing.T) {
	cluster := testkit.StartRedisCluster(t)
	d := newCallbackFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: cluster.Addrs()}}, nil)
	d.attach("a")
	reply := cluster.Nodes[0].MustDo("CLUSTER", "KEYSLOT", kv.MetaKey(d.id))
	number, err := reply.AsInt64()
	if err != nil {
		t.Fatal(err)
	}
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
			if got := d.frame("a", fmt.Sprint(n)); got != channel.Appended {
				t.Errorf("frame %d: %s, want %s", n, got, channel.Appended)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	return id
}
