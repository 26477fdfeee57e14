package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/poll"
	"telapi/test/servers"
)

func TestStoreConnectsWhenServerStartsLate(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	r.Stop()
	s, j := open(t, redisOptions(r))
	poll.Until(t, "a log line", func() bool { return j.count("store unavailable") == 1 })
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
	poll.Until(t, "service", func() bool { return s.Ping(t.Context()) == nil })
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

func TestStoreReconnectsAfterCrash(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, j := connect(t, redisOptions(r))
	e := subscribe(t, s)
	for i := range 2 {
		story := e.recorded()
		r.Kill()
		poll.Until(t, "notification of the lost connection", func() bool { return e.recorded() == story+" down" })
		poll.Until(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
		r.Start()
		poll.Until(t, "a new subscription", func() bool { return e.recorded() == story+" down up" })
		poll.Until(t, "service", func() bool { return s.Announce(t.Context(), fmt.Sprint(i)) == nil })
		poll.Until(t, "the announcement", func() bool { return e.recorded() == fmt.Sprintf("%s down up %d", story, i) })
	}
	if j.count("store unavailable") != 2 || j.count("connected") != 3 {
		t.Errorf("not one line per change:\n%s", j)
	}
}

// A frozen server keeps its connections open and says nothing, as a host does
// that has lost its power or its network.
func TestStoreReconnectsAfterFreeze(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	e := subscribe(t, s)
	r.Freeze()
	poll.Until(t, "notification of the lost connection", func() bool { return e.recorded() == "up down" })
	poll.Until(t, "refusals", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	r.Thaw()
	poll.Until(t, "a new subscription", func() bool { return e.recorded() == "up down up" })
	poll.Until(t, "service", func() bool { return s.Ping(t.Context()) == nil })
}

func TestWrongPasswordIsLoggedWithoutItsValue(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, servers.RedisPassword("right"))
	r.Stop()
	opts := redisOptions(r)
	opts.Password = "wr0ng-secret"
	s, j := open(t, opts)
	poll.Until(t, "away", func() bool { return j.count("refused") > 0 })
	r.Start() // the reason changes, and the log says so
	poll.Until(t, "the new reason", func() bool { return j.count("WRONGPASS") > 0 })
	err := s.Ping(t.Context())
	if !fault.Is(err, fault.ServiceUnavailable) || strings.Contains(err.Error()+j.String(), "wr0ng") {
		t.Errorf("ping: %v\n%s", err, j)
	}
}

// TLS that fails must never fall back to anything else.
func TestUntrustedCertificateIsRejected(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t, servers.RedisTLS(servers.NewCA(t)))
	opts := redisOptions(r)
	opts.TLS = servers.StartRedis(t, servers.RedisTLS(servers.NewCA(t))).TLS() // trusts the other one
	_, j := open(t, opts)
	poll.Until(t, "the reason", func() bool { return j.count("certificate signed by unknown authority") > 0 })
}

func TestCancelledCallerDoesNotAffectOthers(t *testing.T) {
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

func TestCommandErrorIsNotUnavailability(t *testing.T) {
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
func TestFullStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	if _, err := s.Lease(t.Context(), "k", 1, 1, time.Hour); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("a full store: %v", err)
	}
	poll.Until(t, "a failing ping", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	r.MustDo("CONFIG", "SET", "maxmemory", "0")
	poll.Until(t, "service", func() bool { return s.Ping(t.Context()) == nil })
}

// Not parallel: it looks at all goroutines of the process.
func TestClosedStoreLeavesNoGoroutines(t *testing.T) {
	r := servers.StartRedis(t)
	before := goleak.IgnoreCurrent()
	e, err := StartEmbedded(t.TempDir(), (&logBuffer{}).logger())
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []Options{redisOptions(r), e.Options(nil)} {
		s, j := connect(t, opts)
		ctx, cancel := context.WithCancel(t.Context())
		subscriber, done := &recorder{}, make(chan struct{})
		go func() { s.Subscribe(ctx, subscriber); close(done) }()
		poll.Until(t, "subscription", func() bool { return subscriber.recorded() == "up" })
		s.Close()
		poll.Until(t, "notification of the lost connection", func() bool { return subscriber.recorded() == "up down" })
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

func save(ctx context.Context, s *Store) error {
	_, err := s.SaveLimits(ctx, nil, []byte("{}"))
	return err
}
