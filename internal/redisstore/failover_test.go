package redisstore

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/test/poll"
	"telapi/test/servers"
)

func TestStoreReconnectsToRestartedCluster(t *testing.T) {
	t.Parallel()
	c := servers.StartRedisCluster(t)
	s, _ := connect(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}})
	e := subscribe(t, s)
	for _, node := range c.Nodes {
		node.Kill()
	}
	poll.Until(t, "notification of the lost connection", func() bool { return e.recorded() == "up down" })
	poll.Until(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	for _, node := range c.Nodes {
		node.Start()
	}
	c.AwaitOK()
	poll.Until(t, "a new subscription", func() bool { return e.recorded() == "up down up" })
	poll.Until(t, "service of every slot", func() bool { return leasesEverywhere(t, s) })
}

func TestStoreFollowsClusterFailover(t *testing.T) {
	t.Parallel()
	c := servers.StartRedisCluster(t)
	c.AddReplica(c.Nodes[0])
	s, _ := connect(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}})
	subscriber := subscribe(t, s)
	if !leasesEverywhere(t, s) {
		t.Fatal("not served before the loss")
	}
	c.Nodes[0].Kill()
	poll.Until(t, "service of every slot by the replica", func() bool { return leasesEverywhere(t, s) })
	poll.Until(t, "delivery of an announcement", func() bool {
		_ = s.Announce(t.Context(), "news")
		return strings.HasSuffix(subscriber.recorded(), "news")
	})
}

// leasesEverywhere leases under keys of many slots.
func leasesEverywhere(t *testing.T, s *Store) bool {
	for i := range 20 {
		if _, err := s.Lease(t.Context(), spread(i), 1, 1000, time.Hour); err != nil {
			if !fault.Is(err, fault.ServiceUnavailable) {
				t.Fatalf("lease: %v", err)
			}
			return false
		}
	}
	return true
}

// A master that was demoted answers pings and refuses writes. The address may
// lead to another server by now, so the store reconnects.
func TestStoreLeavesDemotedMaster(t *testing.T) {
	t.Parallel()
	r, master := servers.StartRedis(t), servers.StartRedis(t)
	s, j := connect(t, redisOptions(r))
	e := subscribe(t, s)
	host, port, _ := strings.Cut(master.Addr(), ":")
	r.MustDo("REPLICAOF", host, port)
	poll.Until(t, "refusals", func() bool { return fault.Is(save(t.Context(), s), fault.ServiceUnavailable) })
	poll.Until(t, "a log line", func() bool { return j.count("READONLY") > 0 })
	r.MustDo("REPLICAOF", "NO", "ONE")
	poll.Until(t, "service", func() bool { return save(t.Context(), s) == nil })
	poll.Until(t, "a subscription to whatever serves now", func() bool { return strings.HasPrefix(e.recorded(), "up down up") })
}

func TestOffersAreAcceptedAfterMasterChange(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	s.attach("a")
	accepted := make(chan error, 1)
	runtime := s.runtime("r")
	go func() {
		_, err := runtime.Accept(t.Context(), s.mine)
		accepted <- err
	}()
	info := func(section string) string {
		reply := r.MustDo("INFO", section)
		text, err := reply.ToString()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	poll.Until(t, "a reader of offers", func() bool { return strings.Contains(info("clients"), "blocked_clients:1") })
	r.MustDo("REPLICAOF", "127.0.0.1", "1")
	refused := regexp.MustCompile("cmdstat_xautoclaim:.*rejected_calls=[1-9]")
	poll.Until(t, "a refusal", func() bool { return refused.MatchString(info("commandstats")) })
	r.MustDo("REPLICAOF", "NO", "ONE")
	poll.Until(t, "an offer", func() bool { return s.channels.Offer(t.Context(), wire.Offer{SessionID: s.id}) == nil })
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
