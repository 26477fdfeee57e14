package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestExactlyTheLimitIsAllowedPerWindow(t *testing.T) {
	for _, limit := range []int64{1, 2, 49, 50, 99, 100, 600, 6000} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(limit, time.Minute))
			testkit.Equal(t, "first window allowed requests", f.allowUntilRejected(clientA), limit)
			time.Sleep(time.Minute - 1)
			if f.allow(clientA).Allowed {
				t.Error("request over the limit was allowed before the window ended")
			}
			time.Sleep(time.Nanosecond)
			testkit.Equal(t, "second window allowed requests", f.allowUntilRejected(clientA), limit)
		})
	}
}

func TestBusyClientCostsFewRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Minute))
		f.allowUntilRejected(clientA)
		// Grants of 1, 2, 4 and 8 permits, then 49 of 12 permits: a fiftieth of the limit.
		const want = 53
		testkit.Equal(t, "600 requests cost round trips", f.counter.roundTrips(), want)
		for range 10_000 {
			f.allow(clientA)
		}
		if got := f.counter.roundTrips(); got != want {
			t.Errorf("10,000 rejected requests cost %d round trips, want none", got-want)
		}
		testkit.Equal(t, "telapi_ratelimit_grants_total", testkit.MetricValue(t, f.grants), want)
	})
}

func TestIdleClientHoldsNoMoreThanItUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(6000, time.Minute))
		for used := range int64(500) {
			f.allow(clientA)
			granted := f.counter.byKey["ip:api:203.0.113.7"].used
			if unused := granted - (used + 1); unused > min(used, 6000/50) {
				t.Fatalf("%d requests leave %d unused permits, want at most %d", used+1, unused, min(used, 6000/50))
			}
		}
	})
}

func TestClientsAreCountedByAddressOrNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"two IPv4 addresses":        {"203.0.113.7", "203.0.113.8", false},
		"IPv4-mapped IPv6 address":  {"203.0.113.7", "::ffff:203.0.113.7", true},
		"same IPv6 /64 network":     {"2001:db8::1", "2001:db8::ffff:1:2:3", true},
		"two IPv6 /64 networks":     {"2001:db8::1", "2001:db8:0:1::1", false},
		"same address in two zones": {"fe80::1%eth0", "fe80::1%eth1", true},
		"loopback of IPv4 and IPv6": {"127.0.0.1", "::1", false},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newFixture(t, limitsOf(1, time.Minute))
			f.allow(netip.MustParseAddr(tc.a))
			testkit.Equal(t, "counted together", !f.allow(netip.MustParseAddr(tc.b)).Allowed, tc.same)
		})
	}
}

func TestTiersAreCountedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.allowUntilRejected(clientA)
		for _, tier := range []Tier{Webhook, Auth} {
			if d, err := f.Allow(t.Context(), tier, clientA); err != nil || !d.Allowed {
				t.Errorf("%s: %+v, %v; want allowed", tier, d, err)
			}
		}
		if _, err := f.Allow(t.Context(), "unknown", clientA); err == nil {
			t.Error("unknown tier: no error")
		}
	})
}

func TestChangedLimitsInvalidateGrantsAndRejections(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int64
		test  func(t *testing.T, f *fixture)
	}{
		"raised limit: rejected client is allowed": {10, func(t *testing.T, f *fixture) {
			f.allowUntilRejected(clientA)
			f.current.Store(limitsOf(15, time.Minute))
			testkit.Equal(t, "allowed more requests", f.allowUntilRejected(clientA), 5)
		}},
		"lowered limit: granted permits are void": {6000, func(t *testing.T, f *fixture) {
			for range 400 { // leaves more than 100 unused permits
				f.allow(clientA)
			}
			f.current.Store(limitsOf(10, time.Minute))
			if f.allow(clientA).Allowed {
				t.Error("a permit of the old limits was used")
			}
		}},
		"grant in progress: its permits are void": {6000, func(t *testing.T, f *fixture) {
			for range 127 { // uses up grants of 1, 2, 4 … 64
				f.allow(clientA)
			}
			f.counter.delay = time.Second
			go func() { _, _ = f.Allow(context.Background(), API, clientA) }()
			synctest.Wait() // a grant of 120 permits is in progress
			f.current.Store(limitsOf(10, time.Minute))
			f.counter.delay = 0
			for _, when := range []string{"before", "after"} {
				if f.allow(clientA).Allowed {
					t.Errorf("allowed %s the grant under the old limits arrived", when)
				}
				time.Sleep(2 * time.Second)
			}
		}},
		"same limits saved again: rejection is void": {10, func(t *testing.T, f *fixture) {
			f.allowUntilRejected(clientA)
			trips := f.counter.roundTrips()
			f.current.Store(limitsOf(10, time.Minute))
			if f.allow(clientA).Allowed || f.counter.roundTrips() == trips {
				t.Error("the limiter rejected without a new grant, or allowed the request")
			}
		}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) { tt.test(t, newFixture(t, limitsOf(tt.limit, time.Minute))) })
	}
}

func TestCallersWithDifferentQuotasDoNotStarveEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, &Limits{})
		f.counter.delay = time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i := range int64(200) {
			wg.Go(func() {
				testkit.NoError(t, fmt.Sprintf("caller %d", i), testkit.ErrorOf(f.AllowTeam(ctx, "t1", 100+i%2)))
			})
		}
		wg.Wait()
	})
}

func TestLimiterFailsClosedAfterGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Minute))
		f.allow(clientA)
		f.allow(clientA) // leaves one permit of a grant of two
		f.counter.err = fault.Unavailable("The key-value store", errors.New("rejected"))
		if !f.allow(clientA).Allowed {
			t.Error("the granted permit was not used")
		}
		testkit.WantFault(t, "without permits", testkit.ErrorOf(f.Allow(t.Context(), API, clientA)), fault.ServiceUnavailable)
		f.counter.err = nil
		if !f.allow(clientA).Allowed {
			t.Error("rejected after the store was reachable again")
		}
		testkit.Equal(t, "counted failures", testkit.MetricValue(t, f.decisions.WithLabelValues("api", "failed")), 1)
	})
}

func TestConcurrentCallersShareOneGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1000, time.Minute))
		f.counter.delay = time.Millisecond
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if f.allow(clientA).Allowed {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		testkit.Equal(t, "allowed requests", allowed.Load(), 200)
		if got := f.counter.roundTrips(); got > 12 { // grants of 1 permit, then of 20
			t.Errorf("200 requests cost %d round trips, want at most 12", got)
		}
		for _, n := range f.counter.requested {
			if n > 20 {
				t.Errorf("granted %d permits at once, want at most 2 %% of 1000", n)
			}
		}
	})
}

func TestCanceledCallerDoesNotCancelGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.counter.delay = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		other := make(chan Decision)
		go func() {
			time.Sleep(time.Microsecond)
			other <- f.allow(clientA)
		}()
		testkit.WantError(t, "caller with a deadline", testkit.ErrorOf(f.Allow(ctx, API, clientA)), context.DeadlineExceeded)
		if d := <-other; !d.Allowed || f.counter.roundTrips() != 1 {
			t.Errorf("caller without a deadline got %+v in %d round trips, want allowed in 1", d, f.counter.roundTrips())
		}
	})
}

// A grant that arrives after its window ended in the store would be spent in
// the next window, on top of that one's limit.
func TestPermitsExpireWithTheirWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Second))
		start := time.Now()
		f.allow(clientA)
		f.counter.delay = 10 * time.Millisecond
		for range 500 {
			before := time.Now()
			f.allow(clientA)
			b := f.bucket("ip:api:203.0.113.7")
			if w := f.counter.byKey["ip:api:203.0.113.7"]; b.ends.After(w.ends) {
				t.Fatalf("after %v the local window ends %v later than in the store", before.Sub(start), b.ends.Sub(w.ends))
			}
			time.Sleep(7 * time.Millisecond)
		}
	})
}

func TestOnlyUsedUpHandshakesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		const limit = 3
		for i := range limit + 1 {
			d, err := f.AllowHandshake(t.Context(), "ses_1", limit)
			if err != nil || d.Allowed != (i < limit) {
				t.Errorf("handshake %d: %+v, %v, want %d allowed", i+1, d, err, limit)
			}
			_, rejected := f.HandshakeRejection("ses_1", limit)
			_, remembered := f.buckets.Get(handshakesName("ses_1"))
			if usedUp := i >= limit-1; rejected != usedUp || remembered != usedUp {
				t.Errorf("after handshake %d: rejected %t, remembered %t, want %t", i+1, rejected, remembered, usedUp)
			}
		}
	})
}

func TestConcurrentHandshakesUseAllPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.counter.delay = time.Millisecond
		const limit = 2 * grantShare // a grant has up to two permits
		for range limit / 2 {
			var pair sync.WaitGroup
			for range 2 {
				pair.Go(func() {
					if d, err := f.AllowHandshake(t.Context(), "ses_1", limit); err != nil || !d.Allowed {
						t.Errorf("handshake: %+v, %v, want allowed", d, err)
					}
				})
			}
			pair.Wait()
		}
	})
}

func TestTeamQuotaIsPerUTCDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // starts at midnight UTC
		f := newFixture(t, &Limits{})
		time.Sleep(23 * time.Hour)
		take := func(team string) Decision {
			d, err := f.AllowTeam(t.Context(), team, 3)
			testkit.Must(t, err)
			return d
		}
		for range 3 {
			if !take("t1").Allowed {
				t.Fatal("rejected within the quota")
			}
		}
		d := take("t1")
		if d.Allowed || d.Reset != time.Hour || d.Window != 24*time.Hour || d.Limit != 3 || d.Remaining != 0 {
			t.Errorf("over the quota: %+v, want rejected, limit 3, nothing remaining, reset in 1h", d)
		}
		if !take("t2").Allowed {
			t.Error("another team was rejected")
		}
		time.Sleep(time.Hour - 1)
		if take("t1").Allowed {
			t.Error("allowed before midnight")
		}
		time.Sleep(time.Nanosecond)
		if !take("t1").Allowed {
			t.Error("rejected on the new day")
		}
		if _, ok := f.counter.byKey["team:t1:2000-01-02"]; !ok {
			t.Errorf("counted under %v, want a key for 2000-01-02", slices.Collect(maps.Keys(f.counter.byKey)))
		}
		if d, _ := f.AllowTeam(t.Context(), "t3", 0); d.Allowed {
			t.Error("a quota of 0 allowed a request")
		}
	})
}

func TestCloseWaitsForGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.counter.delay = time.Second
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = f.Allow(t.Context(), API, clientA)
		}()
		synctest.Wait()
		f.Close()
		if f.counter.roundTrips() != 1 {
			t.Error("Close did not wait for the grant")
		}
		<-done
		testkit.WantError(t, "after Close", testkit.ErrorOf(f.Allow(t.Context(), API, netip.MustParseAddr("203.0.113.8"))), background.ErrClosed)
	})
}
