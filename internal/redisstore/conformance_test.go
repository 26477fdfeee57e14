package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/internal/ratelimit"
	"telapi/internal/speech"
	"telapi/test/conformance"
	"telapi/test/speechtest"
	"telapi/test/testkit"
)

// TestConformance runs the same tests on every engine. Each test gets options with
// which it can open any number of stores on an engine of its own. Only the cluster,
// which takes long to start, serves one test after the other.
func TestConformance(t *testing.T) {
	engines := map[string]func(*testing.T) Options{
		"embedded": func(t *testing.T) Options {
			e, logs := startEmbedded(t, t.TempDir())
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
		"fakes of other tests behave alike":        fakesConform,
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

// fakesConform runs the tests that the fakes of ratelimit and usage also pass.
func fakesConform(t *testing.T, opts Options) {
	a, _ := reports(t, opts)
	deleteKey(t, a.store, kv.LimitsKey)
	conformance.Counter(t, a.store, uuid.NewString())
	conformance.LimitsStore(t, a.store)
	conformance.ReportStream(t, a, func() { a.redeliverAfter = 0 })
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
					g, err := s.Grant(t.Context(), slotKey(i), 1+n%7, 100, time.Hour)
					if err != nil || g.Permits > 1+n%7 || g.Remaining < 0 || g.Reset <= 0 || g.Reset > time.Hour {
						t.Errorf("lease: %+v, %v, want at most %d permits and a window of at most 1h", g, err, 1+n%7)
						return
					}
					granted.Add(g.Permits)
				}
			})
		}
		wg.Wait()
		testkit.Equal(t, "granted permits", granted.Load(), 100)
		if g, err := a.Grant(t.Context(), slotKey(i), 1, 90, time.Hour); err != nil || g.Permits != 0 || g.Remaining != 0 {
			t.Errorf("lease with a lower limit: %+v, %v, want no permits", g, err)
		}
	}
}

func counterIsRepaired(t *testing.T, opts Options) {
	s, _ := connect(t, opts)
	lease := func(key string, window time.Duration) ratelimit.Grant {
		t.Helper()
		g, err := s.Grant(t.Context(), key, 1, 1, window)
		testkit.Must(t, err)
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
		testkit.Must(t, s.Announce(t.Context(), topic))
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
		testkit.Equal(t, "received", strings.Join(slices.Compact(calls), " "), want)
	}
}

func raw(t *testing.T, s *Store, operate func(context.Context, rueidis.Client) error) {
	t.Helper()
	testkit.Must(t, s.do(t.Context(), "test", operate))
}

func deleteKey(t *testing.T, s *Store, key string) {
	t.Helper()
	raw(t, s, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Del().Key(key).Build()).Error()
	})
}

var leaseTests = map[string]func(*testing.T, Options){
	"speech.Leases":                     leasesConform,
	"lease of a crashed holder expires": crashedLeaseExpires,
	"lost lease ends its context":       lostLeaseEnds,
}

func leasesConform(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	speechtest.TestLeases(t, NewLeases(a), NewLeases(b), uuid.NewString())
}

// mustTry takes a free lease.
func mustTry(t *testing.T, l Leases, name string) (context.Context, func()) {
	t.Helper()
	lease, release, held, err := l.Try(t.Context(), name)
	if err != nil || !held {
		t.Fatalf("try a free lease: held %t, %v, want true", held, err)
	}
	return lease, release
}

func crashedLeaseExpires(t *testing.T, opts Options) {
	opts.Logger = (&testkit.Buffer{}).Logger()
	dead := Open(opts)
	testkit.Must(t, dead.Connect(t.Context()))
	alive, _ := connect(t, opts)
	name := uuid.NewString()
	lease, release := mustTry(t, Leases{dead, time.Second}, name)
	dead.Close()
	ctx := t.Context()
	end, _, err := NewLeases(alive).Acquire(ctx, name)
	if err != nil {
		t.Fatalf("acquire the lease of a crashed holder: %v", err)
	}
	if lease.Err() == nil {
		t.Error("the former holder's context has not ended")
	}
	release() // too late: another holder has the lease
	if _, _, held, err := NewLeases(alive).Try(ctx, name); err != nil || held {
		t.Errorf("the late release ended the lease of its successor: %v", err)
	}
	end()
	_, release = mustTry(t, NewLeases(alive), name)
	release()
}

func lostLeaseEnds(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	name := uuid.NewString()
	lease, release := mustTry(t, NewLeases(a), name)
	if _, _, held, err := NewLeases(b).Try(t.Context(), name); err != nil || held {
		t.Errorf("a second instance acquired the lease: %v", err)
	}
	deleteKey(t, b, kv.LeasePrefix+name)
	second, endSecond := mustTry(t, NewLeases(b), name)
	testkit.Until(t, "the context of the first holder ends", func() bool { return lease.Err() != nil })
	release()
	if second.Err() != nil {
		t.Error("the late release ended the second lease")
	}
	endSecond()
	if second.Err() == nil {
		t.Error("the context of a released lease has not ended")
	}
}

var reportTests = map[string]func(*testing.T, Options){
	"unacknowledged reports are redelivered": reportsAreRedelivered,
	"rejected reports are moved":             rejectedReportsAreMoved,
	"lost stream is created again":           lostStreamIsCreatedAgain,
}

// reports returns the empty stream for two instances.
func reports(t *testing.T, opts Options) (a, b *ReportStream) {
	t.Helper()
	one, _ := connect(t, opts)
	two, _ := connect(t, opts)
	deleteKey(t, one, kv.ReportsStream)
	deleteKey(t, one, kv.RejectedReportsStream)
	a, b = NewReportStream(one), NewReportStream(two)
	a.redeliverAfter, b.redeliverAfter = time.Hour, time.Hour
	return a, b
}

func add(t *testing.T, r *ReportStream, n int) {
	t.Helper()
	var batch [][]byte
	for i := range n {
		batch = append(batch, fmt.Append(nil, i))
	}
	testkit.Must(t, r.Append(t.Context(), batch...))
}

// next waits for reports and returns them.
func next(t *testing.T, r *ReportStream) (taken []speech.ReportEntry) {
	t.Helper()
	testkit.Until(t, "a delivery", func() (ok bool) {
		var err error
		if taken, err = r.Read(t.Context(), 100, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		return len(taken) > 0
	})
	return taken
}

func streamLen(t *testing.T, r *ReportStream) int64 {
	t.Helper()
	n, err := r.Len(t.Context())
	testkit.Must(t, err)
	return n
}

func reportsAreRedelivered(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 3)
	dead := next(t, a)
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 {
		t.Errorf("read reports of another instance: %v, %v, want none", taken, err)
	}
	b.redeliverAfter = time.Millisecond
	if got := next(t, b); len(got) != 3 || got[0].ID != dead[0].ID || string(got[2].Report) != "2" {
		t.Errorf("redelivered: %v, want %v", got, dead)
	}
	// An instance crashed between deleting and acknowledging a report.
	raw(t, b.store, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Xdel().Key(kv.ReportsStream).Id(dead[0].ID).Build()).Error()
	})
	if got := next(t, b); len(got) != 2 || string(got[0].Report) != "1" {
		t.Errorf("after one was deleted: %v, want the other two", got)
	}
	testkit.Must(t, b.Ack(t.Context(), dead))
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 || streamLen(t, b) != 0 {
		t.Errorf("after all are acknowledged: %v, %v, want none", taken, err)
	}
}

func rejectedReportsAreMoved(t *testing.T, opts Options) {
	a, _ := reports(t, opts)
	testkit.Must(t, a.Append(t.Context(), make([]byte, 10_000)))
	testkit.Must(t, a.Reject(t.Context(), next(t, a)[0], "because"))
	raw(t, a.store, func(ctx context.Context, c rueidis.Client) error {
		rejected, err := c.Do(ctx, c.B().Xrange().Key(kv.RejectedReportsStream).Start("-").End("+").Build()).AsXRange()
		if len(rejected) != 1 || rejected[0].FieldValues["reason"] != "because" || len(rejected[0].FieldValues["report"]) != maxRejectedBytes {
			t.Errorf("rejected reports: %v, want one, truncated, with its reason", rejected)
		}
		return err
	})
	if streamLen(t, a) != 0 {
		t.Error("the rejected report is still on the stream")
	}
}

func lostStreamIsCreatedAgain(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 1)
	next(t, b)
	deleteKey(t, a.store, kv.ReportsStream)
	add(t, a, 2)
	if got := next(t, b); len(got) != 2 {
		t.Errorf("%v, want both reports of the new stream", got)
	}
}
