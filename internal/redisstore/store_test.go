package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/redact"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// open opens a store. At the end of the test, it closes the store and shows the log
// if the test failed.
func open(t *testing.T, opts Options) (*Store, *testkit.Buffer) {
	t.Helper()
	logs := &testkit.Buffer{}
	opts.Logger = logs.Logger()
	s := Open(opts)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("log of %s:\n%s", t.Name(), logs)
		}
	})
	return s, logs
}

// connect opens a store and waits until it is connected.
func connect(t *testing.T, opts Options) (*Store, *testkit.Buffer) {
	t.Helper()
	s, logs := open(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	if err := s.Connect(ctx); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return s, logs
}

func redisOptions(r *testkit.Redis) Options {
	return Options{RedisOptions: config.RedisOptions{Addrs: []string{r.Addr()}, Password: redact.Secret(r.Password()), TLS: r.TLS()}}
}

// recorder is a kv.Listener that records its calls.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, s)
}

func (r *recorder) Up()                  { r.note("up") }
func (r *recorder) Down(error)           { r.note("down") }
func (r *recorder) Message(topic string) { r.note(topic) }

func (r *recorder) recorded() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.calls, " ")
}

// subscribe subscribes a recorder until the test ends. It waits until the
// subscription is up.
func subscribe(t *testing.T, s *Store) *recorder {
	t.Helper()
	rec := &recorder{}
	testkit.Start(t, func(ctx context.Context) { s.Subscribe(ctx, rec) })
	testkit.Until(t, "subscription", func() bool { return strings.HasPrefix(rec.recorded(), "up") })
	return rec
}

// slotKey returns the i-th key. Each is in another slot, so that they are spread
// over the nodes of a cluster.
func slotKey(i int) string { return "test:" + string(rune('a'+i)) }

func TestStoreConnectsWhenServerStartsLate(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	r.Stop()
	s, logs := open(t, redisOptions(r))
	testkit.Until(t, "a log line", func() bool { return logs.Count("store unavailable") == 1 })
	for name, operate := range operations(s) {
		if err := operate(t.Context()); !fault.Is(err, fault.ServiceUnavailable) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v, want unavailable because the connection was refused", name, err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	testkit.WantFault(t, "connect", s.Connect(short), fault.ServiceUnavailable)
	r.Start()
	testkit.Until(t, "the store is available", func() bool { return s.Ping(t.Context()) == nil })
	for name, operate := range operations(s) {
		testkit.NoError(t, name, operate(t.Context()))
	}
	if logs.Count("store unavailable") != 1 || logs.Count("connected") != 1 {
		t.Errorf("want one log line per change:\n%s", logs)
	}
}

func operations(s *Store) map[string]func(context.Context) error {
	channels := NewChannels(s, wire.DefaultChannelLimits())
	return map[string]func(context.Context) error{
		"ping":     s.Ping,
		"announce": func(ctx context.Context) error { return s.Announce(ctx, "t") },
		"lease": func(ctx context.Context) error {
			_, err := s.Grant(ctx, "k", 1, 1, time.Minute)
			return err
		},
		"limits": func(ctx context.Context) error { _, _, err := s.Limits(ctx); return err },
		"save":   func(ctx context.Context) error { return save(ctx, s) },
		"attach": func(ctx context.Context) error {
			_, err := channels.Attach(ctx, channel.AttachRequest{ChannelID: "c", ConnectionID: "a"})
			return err
		},
		"append": func(ctx context.Context) error {
			_, _, err := channels.Append(ctx, channel.Owner{ChannelID: "c", ConnectionID: "a"}, []channel.Frame{{}})
			return err
		},
		"end":   func(ctx context.Context) error { return channels.EndChannel(ctx, "e", "done") },
		"audio": func(ctx context.Context) error { return channels.SendAudio(ctx, "d", []byte("{}")) },
	}
}

func TestStoreReconnectsAfterCrash(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, logs := connect(t, redisOptions(r))
	rec := subscribe(t, s)
	for i := range 2 {
		before := rec.recorded()
		r.Kill()
		testkit.Until(t, "the subscriber is down", func() bool { return rec.recorded() == before+" down" })
		testkit.Until(t, "the store is unavailable", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
		r.Start()
		testkit.Until(t, "a new subscription", func() bool { return rec.recorded() == before+" down up" })
		testkit.Until(t, "the store is available", func() bool { return s.Announce(t.Context(), fmt.Sprint(i)) == nil })
		testkit.Until(t, "the announcement", func() bool { return rec.recorded() == fmt.Sprintf("%s down up %d", before, i) })
	}
	if logs.Count("store unavailable") != 2 || logs.Count("connected") != 3 {
		t.Errorf("want one log line per change:\n%s", logs)
	}
}

// A frozen server keeps its connections open and does not respond, like a host
// without power or network.
func TestStoreReconnectsAfterFreeze(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	rec := subscribe(t, s)
	r.Freeze()
	testkit.Until(t, "the subscriber is down", func() bool { return rec.recorded() == "up down" })
	testkit.Until(t, "the store is unavailable", func() bool { return fault.Is(s.Ping(t.Context()), fault.ServiceUnavailable) })
	r.Thaw()
	testkit.Until(t, "a new subscription", func() bool { return rec.recorded() == "up down up" })
	testkit.Until(t, "the store is available", func() bool { return s.Ping(t.Context()) == nil })
}

func TestWrongPasswordIsLoggedWithoutItsValue(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t, testkit.RedisPassword("right"))
	r.Stop()
	opts := redisOptions(r)
	opts.Password = "wr0ng-secret"
	s, logs := open(t, opts)
	testkit.Until(t, "connection refused", func() bool { return logs.Count("refused") > 0 })
	r.Start() // the new reason is logged
	testkit.Until(t, "a log line with the new reason", func() bool { return logs.Count("WRONGPASS") > 0 })
	err := s.Ping(t.Context())
	if !fault.Is(err, fault.ServiceUnavailable) || strings.Contains(err.Error()+logs.String(), "wr0ng") {
		t.Errorf("ping: %v, want unavailable, without the password; logged:\n%s", err, logs)
	}
}

// A failed TLS handshake must not fall back to a less secure connection.
func TestUntrustedCertificateIsRejected(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t, testkit.RedisTLS(testkit.NewCA(t)))
	opts := redisOptions(r)
	opts.TLS = testkit.StartRedis(t, testkit.RedisTLS(testkit.NewCA(t))).TLS() // trusts another CA
	_, logs := open(t, opts)
	testkit.Until(t, "a log line with the reason", func() bool { return logs.Count("certificate signed by unknown authority") > 0 })
}

func TestCommandErrorIsNotUnavailability(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, logs := connect(t, redisOptions(r))
	r.MustDo("LPUSH", kv.RatePrefix+"k", "not a number")
	_, err := s.Grant(t.Context(), "k", 1, 1, time.Hour)
	if err == nil || fault.Is(err, fault.ServiceUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v", err)
	}
	if logs.Count("store unavailable") != 0 {
		t.Errorf("logged as unavailable:\n%s", logs)
	}
	// Limits of the wrong type are invalid, but can be replaced.
	r.MustDo("LPUSH", kv.LimitsKey, "not a string")
	value, ok, err := s.Limits(t.Context())
	if err != nil || !ok || len(value) != 0 {
		t.Errorf("limits of the wrong type: %q, found %t, %v, want an empty value", value, ok, err)
	}
	if saved, err := s.SaveLimits(t.Context(), value, []byte("{}")); err != nil || !saved {
		t.Errorf("replace limits: saved %t, %v, want true", saved, err)
	}
}

func TestFingerprintsAreListedUntilTheyExpire(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	share := func(fingerprint string, ttl time.Duration) []string {
		list, err := s.ShareFingerprint(t.Context(), fingerprint, ttl)
		testkit.Must(t, err)
		return list
	}
	testkit.Equal(t, "fingerprints", share("expires", 50*time.Millisecond), []string{"expires"})
	share("kept", time.Hour)
	ttl := r.MustDo("PTTL", kv.FingerprintsKey)
	if ms, err := ttl.AsInt64(); err != nil || ms <= 0 {
		t.Errorf("the key expires in %d ms, %v; want an hour", ms, err)
	}
	testkit.Until(t, "one expires", func() bool { return strings.Join(share("", time.Hour), " ") == "kept" })
}

// Not parallel: it checks all goroutines of the process.
func TestClosedStoreLeavesNoGoroutines(t *testing.T) {
	r := testkit.StartRedis(t)
	before := goleak.IgnoreCurrent()
	e, err := StartEmbedded(EmbeddedOptions{DataDir: t.TempDir()}, (&testkit.Buffer{}).Logger())
	testkit.Must(t, err)
	for _, opts := range []Options{redisOptions(r), e.Options(nil)} {
		s, logs := connect(t, opts)
		ctx, cancel := context.WithCancel(t.Context())
		rec, done := &recorder{}, make(chan struct{})
		go func() { s.Subscribe(ctx, rec); close(done) }()
		testkit.Until(t, "subscription", func() bool { return rec.recorded() == "up" })
		s.Close()
		testkit.Until(t, "the subscriber is down", func() bool { return rec.recorded() == "up down" })
		cancel()
		<-done
		if err := s.Ping(t.Context()); !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("got %v", err)
		}
		if logs.Count("store unavailable") != 0 {
			t.Errorf("Close was logged as an outage:\n%s", logs)
		}
	}
	e.Close()
	leaks.Verify(t, before)
}

func save(ctx context.Context, s *Store) error {
	_, err := s.SaveLimits(ctx, nil, []byte("{}"))
	return err
}
