package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"telapi/internal/fault"
	"telapi/test/servers"
)

func TestStoreThatIsAwayAtStartIsServedWhenItComes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Stop()
	s, j := open(t, redisOptions(r))
	eventually(t, "a log line", func() bool { return j.count("is away") == 1 })
	for name, operate := range operations(s) {
		if err := operate(t.Context()); !fault.Is(err, fault.ServiceUnavailable) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", name, err)
		}
	}
	hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Connect(hasty); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("connect: %v", err)
	}
	r.Start()
	eventually(t, "service", func() bool { return s.Ping(t.Context()) == nil })
	for name, operate := range operations(s) {
		if err := operate(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if j.count("is away") != 1 || j.count("connected") != 1 {
		t.Errorf("not one line per change:\n%s", j)
	}
}

func operations(s *Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"ping":     s.Ping,
		"announce": func(ctx context.Context) error { return s.Announce(ctx, "t") },
		"lease": func(ctx context.Context) error {
			_, err := s.Lease(ctx, "k", 1, 1, time.Minute)
			return err
		},
		"limits": func(ctx context.Context) error { _, _, err := s.Limits(ctx); return err },
		"save":   func(ctx context.Context) error { return s.SaveLimits(ctx, []byte("{}")) },
	}
}

func TestKilledRedisIsServedAgainWithoutARestart(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, j := connect(t, redisOptions(r))
	e := listen(t, s)
	for i := range 2 {
		story := e.story()
		r.Kill()
		eventually(t, "the loss is heard of", func() bool { return e.story() == story+" down" })
		eventually(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
		r.Start()
		eventually(t, "a new subscription", func() bool { return e.story() == story+" down up" })
		eventually(t, "service", func() bool { return s.Announce(t.Context(), fmt.Sprint(i)) == nil })
		eventually(t, "the announcement", func() bool { return e.story() == fmt.Sprintf("%s down up %d", story, i) })
	}
	if j.count("is away") != 2 || j.count("connected") != 3 {
		t.Errorf("not one line per change:\n%s", j)
	}
}

// A frozen server keeps its connections open and says nothing, as a host does
// that has lost its power or its network.
func TestSilentRedisIsNoticedAndServedAgain(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	e := listen(t, s)
	r.Freeze()
	eventually(t, "the loss is heard of", func() bool { return e.story() == "up down" })
	eventually(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	r.Thaw()
	eventually(t, "a new subscription", func() bool { return e.story() == "up down up" })
	eventually(t, "service", func() bool { return s.Ping(t.Context()) == nil })
}

func TestRestartedClusterIsServedAgain(t *testing.T) {
	t.Parallel()
	c := servers.StartRedisCluster(t)
	s, _ := connect(t, Options{Addrs: c.Addrs()})
	e := listen(t, s)
	for _, node := range c.Nodes {
		node.Kill()
	}
	eventually(t, "the loss is heard of", func() bool { return e.story() == "up down" })
	eventually(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	for _, node := range c.Nodes {
		node.Start()
	}
	c.AwaitOK()
	eventually(t, "a new subscription", func() bool { return e.story() == "up down up" })
	eventually(t, "service of every slot", func() bool { return leasesEverywhere(t, s) })
}

func TestClusterThatFailsOverIsServedAgain(t *testing.T) {
	t.Parallel()
	c := servers.StartRedisCluster(t)
	c.AddReplica(c.Nodes[0])
	s, _ := connect(t, Options{Addrs: c.Addrs()})
	heard := listen(t, s)
	if !leasesEverywhere(t, s) {
		t.Fatal("not served before the loss")
	}
	c.Nodes[0].Kill()
	eventually(t, "service of every slot by the replica", func() bool { return leasesEverywhere(t, s) })
	eventually(t, "an announcement that is heard", func() bool {
		_ = s.Announce(t.Context(), "news")
		return strings.HasSuffix(heard.story(), "news")
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
// lead to another server by now, so the connection is made anew.
func TestDemotedMasterIsLeft(t *testing.T) {
	t.Parallel()
	r, master := servers.StartRedis(t), servers.StartRedis(t)
	s, j := connect(t, redisOptions(r))
	e := listen(t, s)
	host, port, _ := strings.Cut(master.Addr(), ":")
	r.MustDo("REPLICAOF", host, port)
	eventually(t, "refusals", func() bool { return fault.Is(s.SaveLimits(t.Context(), []byte("{}")), fault.ServiceUnavailable) })
	eventually(t, "a log line", func() bool { return j.count("READONLY") > 0 })
	r.MustDo("REPLICAOF", "NO", "ONE")
	eventually(t, "service", func() bool { return s.SaveLimits(t.Context(), []byte("{}")) == nil })
	eventually(t, "a subscription to whatever serves now", func() bool { return strings.HasPrefix(e.story(), "up down up") })
}

func TestWrongPasswordIsSaidAndNotShown(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, servers.RedisPassword("right"))
	r.Stop()
	opts := redisOptions(r)
	opts.Password = "wr0ng-secret"
	s, j := open(t, opts)
	eventually(t, "away", func() bool { return j.count("refused") > 0 })
	r.Start() // the reason changes, and the log says so
	eventually(t, "the new reason", func() bool { return j.count("WRONGPASS") > 0 })
	err := s.Ping(t.Context())
	if !fault.Is(err, fault.ServiceUnavailable) || strings.Contains(err.Error()+j.String(), "wr0ng") {
		t.Errorf("ping: %v\n%s", err, j)
	}
}

// TLS that fails must never fall back to anything else.
func TestServerOfAnotherAuthorityIsRefused(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, servers.RedisTLS(servers.NewCA(t)))
	opts := redisOptions(r)
	opts.TLS = servers.StartRedis(t, servers.RedisTLS(servers.NewCA(t))).TLS() // trusts the other one
	_, j := open(t, opts)
	eventually(t, "the reason", func() bool { return j.count("certificate signed by unknown authority") > 0 })
}

func TestCallerWhoGivesUpFailsNobodyElse(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				go cancel()
			}
			_, err := s.Lease(ctx, "k", 1, 1000, time.Hour)
			if err != nil && (i%2 == 1 || !errors.Is(err, context.Canceled)) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func TestFaultOfOursIsNotTakenForAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, j := connect(t, redisOptions(r))
	r.MustDo("LPUSH", limitsKey, "not a string")
	_, _, err := s.Limits(t.Context())
	if err == nil || fault.Is(err, fault.ServiceUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v", err)
	}
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	if _, err := s.Lease(t.Context(), "k", 1, 1, time.Hour); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("a full store: %v", err)
	}
	if j.count("is away") != 0 {
		t.Errorf("taken for away:\n%s", j)
	}
}

func TestNothingIsHeardAfterSubscribeReturns(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	e := &ear{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Subscribe(ctx, e); close(done) }()
	eventually(t, "subscription", func() bool { return e.story() == "up" })
	cancel()
	<-done
	if err := s.Announce(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	raw(t, s, func(ctx context.Context, c rueidis.Client) error {
		counts, err := c.Do(ctx, c.B().PubsubNumsub().Channel(announceChannel).Build()).AsIntMap()
		if err == nil && counts[announceChannel] != 0 {
			t.Errorf("%d subscriptions are left", counts[announceChannel])
		}
		return err
	})
	if got := e.story(); got != "up down" {
		t.Errorf("heard %q", got)
	}
}

// Not parallel: it looks at all goroutines of the process.
func TestClosedStoreRefusesAndLeavesNothingBehind(t *testing.T) {
	r := servers.StartRedis(t)
	before := goleak.IgnoreCurrent()
	e, err := StartEmbedded(t.TempDir(), (&journal{}).logger())
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []Options{redisOptions(r), e.Options(nil)} {
		s, j := connect(t, opts)
		ctx, cancel := context.WithCancel(t.Context())
		heard, done := &ear{}, make(chan struct{})
		go func() { s.Subscribe(ctx, heard); close(done) }()
		eventually(t, "subscription", func() bool { return heard.story() == "up" })
		s.Close()
		eventually(t, "the loss is heard of", func() bool { return heard.story() == "up down" })
		cancel()
		<-done
		if err := s.Ping(t.Context()); !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("got %v", err)
		}
		if j.count("is away") != 0 {
			t.Errorf("closing was reported as a fault:\n%s", j)
		}
	}
	e.Close()
	goleak.VerifyNone(t, before)
}
