package redisstore

import (
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestStoreReconnectsToRestartedCluster(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t)
	s, _ := connect(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}})
	rec := subscribe(t, s)
	for _, node := range c.Nodes {
		node.Kill()
	}
	testkit.Until(t, "the subscriber is down", func() bool { return rec.recorded() == "up down" })
	testkit.Until(t, "the store is unavailable", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	for _, node := range c.Nodes {
		node.Start()
	}
	c.AwaitOK()
	testkit.Until(t, "a new subscription", func() bool { return rec.recorded() == "up down up" })
	testkit.Until(t, "leases in all slots", func() bool { return leaseInAllSlots(t, s) })
}

// leaseInAllSlots reports whether leases with keys of many slots succeed.
func leaseInAllSlots(t *testing.T, s *Store) bool {
	for i := range 20 {
		if _, err := s.Lease(t.Context(), slotKey(i), 1, 1000, time.Hour); err != nil {
			if !fault.Is(err, fault.ServiceUnavailable) {
				t.Fatalf("lease: %v", err)
			}
			return false
		}
	}
	return true
}

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

// Accept waits until the cluster serves all slots again.
func TestOffersAreAcceptedAfterClusterDown(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t, testkit.RedisDurable())
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}}, nil)
	accepted := make(chan error, 1)
	runtime := s.runtime("r")
	go func() {
		_, err := runtime.Accept(t.Context(), s.isOwnOffer)
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
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
