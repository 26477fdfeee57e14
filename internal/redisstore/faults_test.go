package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/servers"
)

func TestStoreThatIsAwayAtStartIsServedWhenItComes(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Stop()
	s, j := open(t, redisOptions(r))
	eventually(t, "a log line", func() bool { return j.count("store unavailable") == 1 })
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
	if j.count("store unavailable") != 1 || j.count("connected") != 1 {
		t.Errorf("not one line per change:\n%s", j)
	}
}

func operations(s *Store) map[string]func(context.Context) error {
	channels := NewChannels(s, wire.DefaultChannelLimits())
	return map[string]func(context.Context) error{
		"ping":     s.Ping,
		"announce": func(ctx context.Context) error { return s.Announce(ctx, "t") },
		"lease": func(ctx context.Context) error {
			_, err := s.Lease(ctx, "k", 1, 1, time.Minute)
			return err
		},
		"limits": func(ctx context.Context) error { _, _, err := s.Limits(ctx); return err },
		"save":   func(ctx context.Context) error { return save(ctx, s) },
		"attach": func(ctx context.Context) error {
			_, err := channels.Attach(ctx, channel.AttachRequest{ChannelID: "c", ConnectionID: "a"})
			return err
		},
		"append": func(ctx context.Context) error {
			_, err := channels.Append(ctx, "c", "", []channel.Frame{{}})
			return err
		},
		"end":   func(ctx context.Context) error { return channels.EndChannel(ctx, "e", "over") },
		"audio": func(ctx context.Context) error { return channels.SendAudio(ctx, "d", []byte("{}")) },
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
	if j.count("store unavailable") != 2 || j.count("connected") != 3 {
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
	s, _ := connect(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}})
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
	s, _ := connect(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}})
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
	eventually(t, "refusals", func() bool { return fault.Is(save(t.Context(), s), fault.ServiceUnavailable) })
	eventually(t, "a log line", func() bool { return j.count("READONLY") > 0 })
	r.MustDo("REPLICAOF", "NO", "ONE")
	eventually(t, "service", func() bool { return save(t.Context(), s) == nil })
	eventually(t, "a subscription to whatever serves now", func() bool { return strings.HasPrefix(e.story(), "up down up") })
}

func TestSessionsAreAcceptedAfterAMasterWasReplaced(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := newStage(t, redisOptions(r), nil)
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
	eventually(t, "a reader of offers", func() bool { return strings.Contains(info("clients"), "blocked_clients:1") })
	r.MustDo("REPLICAOF", "127.0.0.1", "1")
	refused := regexp.MustCompile("cmdstat_xautoclaim:.*rejected_calls=[1-9]")
	eventually(t, "a refusal", func() bool { return refused.MatchString(info("commandstats")) })
	r.MustDo("REPLICAOF", "NO", "ONE")
	eventually(t, "an offer", func() bool { return s.channels.Offer(t.Context(), wire.Offer{SessionID: s.id}) == nil })
	if err := <-accepted; err != nil {
		t.Error(err)
	}
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
	r.MustDo("LPUSH", kv.RatePrefix+"k", "not a number")
	_, err := s.Lease(t.Context(), "k", 1, 1, time.Hour)
	if err == nil || fault.Is(err, fault.ServiceUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v", err)
	}
	if j.count("store unavailable") != 0 {
		t.Errorf("taken for away:\n%s", j)
	}
	// A value of another type is a bad value, which an administrator can replace.
	r.MustDo("LPUSH", kv.LimitsKey, "not a string")
	value, there, err := s.Limits(t.Context())
	if err != nil || !there || len(value) != 0 {
		t.Errorf("limits of another type: %q, %v, %v", value, there, err)
	}
	if saved, err := s.SaveLimits(t.Context(), value, []byte("{}")); err != nil || !saved {
		t.Errorf("replacing them: %v, %v", saved, err)
	}
}

// A full store answers every ping, and is of no use all the same.
func TestStoreThatTakesNoWriteIsAway(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	if _, err := s.Lease(t.Context(), "k", 1, 1, time.Hour); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("a full store: %v", err)
	}
	eventually(t, "a failing ping", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	r.MustDo("CONFIG", "SET", "maxmemory", "0")
	eventually(t, "service", func() bool { return s.Ping(t.Context()) == nil })
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
		counts, err := c.Do(ctx, c.B().PubsubNumsub().Channel(kv.AnnounceTopic).Build()).AsIntMap()
		if err == nil && counts[kv.AnnounceTopic] != 0 {
			t.Errorf("%d subscriptions are left", counts[kv.AnnounceTopic])
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
		if j.count("store unavailable") != 0 {
			t.Errorf("closing was reported as a fault:\n%s", j)
		}
	}
	e.Close()
	for deadline := time.Now().Add(20 * time.Second); goleak.Find(before) != nil && time.Now().Before(deadline); {
	}
	goleak.VerifyNone(t, before)
}

// A socket that was open all the time learns that it may have missed something,
// and what.
func TestSocketsNoticeThatTheirStoreWasAway(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, servers.RedisDurable())
	s := newStage(t, redisOptions(r), nil)
	listen(t, s.store)
	head := s.attach("a").Head
	c := s.take("r")
	sockets := make([]*browser, 20)
	for i := range sockets {
		sockets[i] = &browser{}
		stop, err := s.channels.Subscribe(t.Context(), s.id, sockets[i])
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	s.send(c, "1")
	r.Kill()
	r.Start()
	s.send(c, "2") // waits for the store
	for _, socket := range sockets {
		eventually(t, "the gap", func() bool { return strings.Contains(socket.story(), "gap") })
	}
	s.send(c, "3")
	for _, socket := range sockets {
		eventually(t, "the next message", func() bool { return strings.HasSuffix(socket.story(), "2>3:3") })
	}
	missed, ok, err := s.channels.Since(t.Context(), s.id, head)
	if err != nil || !ok || texts(missed) != "1 2 3" {
		t.Errorf("since: %q, %v, %v", texts(missed), ok, err)
	}
	if got := s.frame("a", "1"); got != channel.Appended {
		t.Errorf("frame: %s", got)
	}
	if events, _ := s.receive(c, "1"); strings.Join(events, " ") != "connected 1" {
		t.Errorf("the runtime saw %v", events)
	}
}

// Sessions come and go on all instances at once; one connection serves them.
func TestThousandsOfSocketsShareAConnection(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s := newStage(t, redisOptions(r), nil)
	listen(t, s.store)
	const sockets = 10_000
	heard := &browser{}
	stops := make([]func(), sockets)
	name := func(i int) string { return fmt.Sprintf("%s:%d", s.id, i/2) } // two each
	var wg sync.WaitGroup
	for worker := range 100 {
		wg.Go(func() {
			for i := worker; i < sockets; i += 100 {
				stop, err := s.channels.Subscribe(t.Context(), name(i), heard)
				if err != nil {
					t.Error(err)
					return
				}
				stops[i] = stop
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	r.MustDo("CLIENT", "KILL", "TYPE", "pubsub")
	eventually(t, "all told of the gap", func() bool { return strings.Count(heard.story(), "gap") == sockets })
	for i := 1; i < sockets; i += 2 {
		stops[i]()
	}
	for i := 0; i < sockets; i += 1000 {
		r.MustDo("PUBLISH", kv.BrowserTopic(name(i)), "X"+name(i))
		eventually(t, "news", func() bool { return strings.Count(heard.story(), "closed:"+name(i)) == 1 })
	}
	for i := 0; i < sockets; i += 2 {
		stops[i]()
	}
	eventually(t, "no subscription but that to announcements", func() bool {
		reply := r.MustDo("PUBSUB", "CHANNELS")
		names, err := reply.AsStrSlice()
		return err == nil && len(names) == 1
	})
	reply := r.MustDo("CLIENT", "LIST", "TYPE", "pubsub")
	clients, err := reply.ToString()
	if err != nil || strings.Count(clients, "id=") != 1 {
		t.Errorf("connections that listen: %s, %v", clients, err)
	}
	if _, err := s.channels.Subscribe(t.Context(), name(0), heard); err != nil {
		t.Errorf("a session that comes back: %v", err)
	}
}

func save(ctx context.Context, s *Store) error {
	_, err := s.SaveLimits(ctx, nil, []byte("{}"))
	return err
}
