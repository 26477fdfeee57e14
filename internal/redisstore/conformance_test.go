package redisstore

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"telapi/internal/audit"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/internal/ratelimit"
	"telapi/test/testkit"
)

// TestConformance runs the same tests on every engine. Each test gets options with
// which it can open any number of stores on an engine of its own. Only the cluster,
// which takes long to start, serves one test after the other.
func TestConformance(t *testing.T) {
	engines := map[string]func(*testing.T) Options{
		"embedded": func(t *testing.T) Options {
			logs := &testkit.Buffer{}
			e, err := StartEmbedded(EmbeddedOptions{DataDir: t.TempDir()}, logs.Logger())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			return e.Options(logs.Logger())
		},
		"redis": func(t *testing.T) Options { return redisOptions(testkit.StartRedis(t)) },
		"redis with TLS, password and database": func(t *testing.T) Options {
			opts := redisOptions(testkit.StartRedis(t, testkit.RedisTLS(testkit.NewCA(t)), testkit.RedisPassword("s3cret")))
			opts.DB = 3
			return opts
		},
		"redis with a named user": func(t *testing.T) Options {
			r := testkit.StartRedis(t, testkit.RedisArgs("--user", "telapi", "on", ">s3cret", "~telapi:*", "&telapi:*", "+@all"))
			opts := redisOptions(r)
			opts.Username, opts.Password = "telapi", "s3cret"
			return opts
		},
		"cluster with one seed address": func(t *testing.T) Options {
			return Options{RedisOptions: config.RedisOptions{Addrs: testkit.SharedRedisCluster(t).Addrs()[:1]}}
		},
	}
	tests := map[string]func(*testing.T, Options){
		"concurrent leases never exceed the limit": leasesNeverExceed,
		"counter without a TTL is repaired":        counterIsRepaired,
		"two instances share one limit":            instancesShareALimit,
		"saved limits reach other instances":       savedLimitsAreLive,
		"announcements reach every instance":       announcementsReachAll,
	}
	for engine, start := range engines {
		cluster := engine == "cluster with one seed address"
		tests := tests
		if engine != "redis" && engine != "redis with TLS, password and database" { // these differ from the others in the connection only
			tests = maps.Clone(tests)
			maps.Copy(tests, channelTests)
			maps.Copy(tests, callbackTests)
			maps.Copy(tests, leaseTests)
			maps.Copy(tests, reportTests)
		}
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			if cluster {
				opts := start(t)
				start = func(*testing.T) Options { return opts }
			}
			for name, test := range tests {
				t.Run(name, func(t *testing.T) {
					if !cluster {
						t.Parallel()
					}
					test(t, start(t))
				})
			}
		})
	}
}

func leasesNeverExceed(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	for i := range 4 {
		var granted atomic.Int64
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				s := []*Store{a, b}[worker%2]
				for n := range int64(30) {
					g, err := s.Lease(t.Context(), slotKey(i), 1+n%7, 100, time.Hour)
					if err != nil || g.Permits > 1+n%7 || g.Remaining < 0 || g.Reset <= 0 || g.Reset > time.Hour {
						t.Errorf("lease: %+v, %v, want at most %d permits and a window of at most 1h", g, err, 1+n%7)
						return
					}
					granted.Add(g.Permits)
				}
			})
		}
		wg.Wait()
		if granted.Load() != 100 {
			t.Errorf("granted %d permits, want 100", granted.Load())
		}
		if g, err := a.Lease(t.Context(), slotKey(i), 1, 90, time.Hour); err != nil || g.Permits != 0 || g.Remaining != 0 {
			t.Errorf("lease with a lower limit: %+v, %v, want no permits", g, err)
		}
	}
}

func counterIsRepaired(t *testing.T, opts Options) {
	s, _ := connect(t, opts)
	lease := func(key string, window time.Duration) ratelimit.Grant {
		t.Helper()
		g, err := s.Lease(t.Context(), key, 1, 1, window)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	raw(t, s, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Set().Key(kv.RatePrefix+"stuck").Value("1").Build()).Error()
	})
	if g := lease("stuck", 300*time.Millisecond); g.Permits != 0 || g.Reset <= 0 {
		t.Errorf("counter without a TTL: %+v, want no permits and a window", g)
	}
	testkit.Until(t, "the counter without a TTL expires", func() bool { return lease("stuck", time.Second).Permits == 1 })
}

func instancesShareALimit(t *testing.T, opts Options) {
	const limit = 1000
	limits, err := ratelimit.DefaultLimits().With(ratelimit.API, ratelimit.Limit{Max: limit, WindowMs: 3_600_000})
	if err != nil {
		t.Fatal(err)
	}
	instance := func() *ratelimit.Limiter {
		s, _ := connect(t, opts)
		return ratelimit.NewLimiter(s, func(context.Context) (*ratelimit.Limits, error) { return &limits, nil }, prometheus.NewRegistry())
	}
	a, b := instance(), instance()
	spend := func(l *ratelimit.Limiter, client string, most int64) (n int64) {
		for n < most {
			d, err := l.Allow(t.Context(), ratelimit.API, netip.MustParseAddr(client))
			if err != nil {
				t.Errorf("allow: %v", err)
				return n
			}
			if !d.Allowed {
				break
			}
			n++
		}
		return n
	}
	t.Run("both busy: exactly the limit", func(t *testing.T) {
		var total atomic.Int64
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() { total.Add(spend([]*ratelimit.Limiter{a, b}[worker%2], "203.0.113.1", limit)) })
		}
		wg.Wait()
		if total.Load() != limit {
			t.Errorf("allowed %d requests, want %d", total.Load(), limit)
		}
	})
	t.Run("one idle: at most 2 % unused", func(t *testing.T) {
		total := spend(a, "203.0.113.2", 100)
		if total += spend(b, "203.0.113.2", limit); total > limit || total < limit*98/100 {
			t.Errorf("allowed %d requests, want at most 2 %% fewer than %d", total, limit)
		}
	})
}

func savedLimitsAreLive(t *testing.T, opts Options) {
	settings := func() (*ratelimit.Settings, *Store) {
		s, logs := connect(t, opts)
		return ratelimit.NewSettings(s, noMirror{}, logs.Logger(), prometheus.NewRegistry()), s
	}
	admin, _ := settings()
	server, s := settings()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { server.Run(ctx) })
	wg.Go(func() { s.Subscribe(ctx, server) })
	defer wg.Wait()
	defer cancel()
	for n := range int64(3) {
		limits, _ := ratelimit.DefaultLimits().With(ratelimit.Auth, ratelimit.Limit{Max: 1 + n, WindowMs: 1000})
		if err := admin.Change(t.Context(), func(ratelimit.Limits) (ratelimit.Limits, error) { return limits, nil }); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the new limits", func() bool { return *server.Current() == limits })
	}
}

type noMirror struct{}

func (noMirror) Setting(context.Context, string) ([]byte, bool, error) { return nil, false, nil }
func (noMirror) SaveSetting(context.Context, string, []byte) error     { return nil }
func (noMirror) ChangeSetting(ctx context.Context, _ string, _ []byte, _ audit.Entry, confirm func(context.Context) error) error {
	return confirm(ctx)
}

func announcementsReachAll(t *testing.T, opts Options) {
	var stores []*Store
	var recorders []*recorder
	for range 3 {
		s, _ := connect(t, opts)
		stores, recorders = append(stores, s), append(recorders, subscribe(t, s))
	}
	want := "up"
	for i, s := range stores {
		topic := "key:" + slotKey(i)
		if err := s.Announce(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		want += " " + topic
		for _, rec := range recorders {
			// Another node may deliver the topic before this one once more, and later.
			testkit.Until(t, topic, func() bool { return slices.Contains(strings.Fields(rec.recorded()), topic) })
		}
	}
	for _, rec := range recorders {
		// A cluster may deliver announcements of other tests late. It delivers those
		// of this test once for each node.
		calls := strings.Fields(strings.ReplaceAll(rec.recorded(), " "+ratelimit.Topic, ""))
		slices.Sort(calls[1:])
		if got := strings.Join(slices.Compact(calls), " "); got != want {
			t.Errorf("received %q, want %q", got, want)
		}
	}
}

func raw(t *testing.T, s *Store, operate func(context.Context, rueidis.Client) error) {
	t.Helper()
	if err := s.do(t.Context(), "test", operate); err != nil {
		t.Fatal(err)
	}
}

func deleteKey(t *testing.T, s *Store, key string) {
	t.Helper()
	raw(t, s, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Del().Key(key).Build()).Error()
	})
}
