package ratelimit

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/background"
	"telapi/internal/fault"
)

func TestExactlyTheLimitIsAllowedPerWindow(t *testing.T) {
	for _, limit := range []int64{1, 2, 49, 50, 99, 100, 600, 6000} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(limit, time.Minute))
			if got := f.spend(alice); got != limit {
				t.Errorf("first window of %d allowed %d", limit, got)
			}
			time.Sleep(time.Minute - 1)
			if f.allow(alice).Allowed {
				t.Error("allowed before the window ended")
			}
			time.Sleep(time.Nanosecond)
			if got := f.spend(alice); got != limit {
				t.Errorf("second window of %d allowed %d", limit, got)
			}
		})
	}
}

func TestBusyClientCostsFewRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Minute))
		f.spend(alice)
		// 1+2+4+8, then 585 in twelves, the last of which finds the count at nought.
		if got := f.counts.round(); got != 53 {
			t.Errorf("600 requests cost %d round trips", got)
		}
		for range 10_000 {
			f.allow(alice)
		}
		if got := f.counts.round(); got != 53 {
			t.Errorf("a flood over the limit cost %d more round trips", got-53)
		}
		if got := counted(f.leases); got != 53 {
			t.Errorf("telapi_ratelimit_leases_total is %v", got)
		}
	})
}

func TestIdleClientHoldsNoMoreThanItUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(6000, time.Minute))
		for used := range int64(500) {
			f.allow(alice)
			leased := f.counts.byKey["ip:api:203.0.113.7"].used
			if stranded := leased - (used + 1); stranded > min(used, 6000/50) {
				t.Fatalf("%d requests hold a lease of %d more", used+1, stranded)
			}
		}
	})
}

func TestClientsAreCountedByAddressOrNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"two IPv4 addresses":       {"203.0.113.7", "203.0.113.8", false},
		"IPv4 in IPv6 clothes":     {"203.0.113.7", "::ffff:203.0.113.7", true},
		"one IPv6 network of 64":   {"2001:db8::1", "2001:db8::ffff:1:2:3", true},
		"two IPv6 networks":        {"2001:db8::1", "2001:db8:0:1::1", false},
		"one address, two zones":   {"fe80::1%eth0", "fe80::1%eth1", true},
		"two teams' own addresses": {"127.0.0.1", "::1", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limitsOf(1, time.Minute))
				f.allow(netip.MustParseAddr(tc.a))
				if refused := !f.allow(netip.MustParseAddr(tc.b)).Allowed; refused != tc.same {
					t.Errorf("counted together: %v, want %v", refused, tc.same)
				}
			})
		})
	}
}

func TestTiersAreCountedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.spend(alice)
		for _, tier := range []Tier{Webhook, Auth} {
			if d, err := f.Allow(t.Context(), tier, alice); err != nil || !d.Allowed {
				t.Errorf("%s: %+v, %v", tier, d, err)
			}
		}
		if _, err := f.Allow(t.Context(), "nonsense", alice); err == nil {
			t.Error("an unknown tier passed")
		}
	})
}

func TestChangedLimitsInvalidateLeasesAndRefusals(t *testing.T) {
	t.Run("raised: a refused client goes on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(10, time.Minute))
			f.spend(alice)
			f.current.Store(limitsOf(15, time.Minute))
			if got := f.spend(alice); got != 5 {
				t.Errorf("allowed %d more, want 5", got)
			}
		})
	})
	t.Run("lowered: permits at hand are void", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(6000, time.Minute))
			for range 400 { // leaves a lease of over a hundred
				f.allow(alice)
			}
			f.current.Store(limitsOf(10, time.Minute))
			if f.allow(alice).Allowed {
				t.Error("a lease of the old limits was still good")
			}
		})
	})
	t.Run("lease under way: its permits are void", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(6000, time.Minute))
			for range 127 { // uses up leases of 1, 2, 4 … 64
				f.allow(alice)
			}
			f.counts.delay = time.Second
			go func() { _, _ = f.Allow(context.Background(), API, alice) }()
			synctest.Wait() // a lease of 120 is under way
			f.current.Store(limitsOf(10, time.Minute))
			f.counts.delay = 0
			for _, when := range []string{"before", "after"} {
				if f.allow(alice).Allowed {
					t.Errorf("allowed %s the lease under the old limits arrived", when)
				}
				time.Sleep(2 * time.Second)
			}
		})
	})
	t.Run("the same limits saved again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, limitsOf(10, time.Minute))
			f.spend(alice)
			trips := f.counts.round()
			f.current.Store(limitsOf(10, time.Minute))
			if f.allow(alice).Allowed || f.counts.round() == trips {
				t.Error("a refusal outlived the limits it was made under")
			}
		})
	})
}

func TestCallersWithDifferentQuotasDoNotStarveEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, &Limits{})
		f.counts.delay = time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i := range int64(200) {
			wg.Go(func() {
				if _, err := f.AllowTeam(ctx, "t1", 100+i%2); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestLimiterFailsClosedAfterLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Minute))
		f.allow(alice)
		f.allow(alice) // of a lease of two
		away := fault.Unavailable("The key-value store", errors.New("refused"))
		f.counts.err = away
		if !f.allow(alice).Allowed {
			t.Error("a permit at hand was not used")
		}
		if _, err := f.Allow(t.Context(), API, alice); !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("got %v", err)
		}
		f.counts.err = nil
		if !f.allow(alice).Allowed {
			t.Error("not served again when the store came back")
		}
		if n := counted(f.decisions.WithLabelValues("api", "failed")); n != 1 {
			t.Errorf("%v failures counted", n)
		}
	})
}

func TestConcurrentCallersShareOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1000, time.Minute))
		f.counts.delay = time.Millisecond
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if f.allow(alice).Allowed {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		if allowed.Load() != 200 {
			t.Errorf("%d of 200 allowed", allowed.Load())
		}
		if got := f.counts.round(); got > 12 { // 1, then 20 at a time
			t.Errorf("cost %d round trips", got)
		}
		for _, n := range f.counts.requested {
			if n > 20 {
				t.Errorf("leased %d at a time, over 2 %% of 1000", n)
			}
		}
	})
}

func TestCanceledCallerDoesNotCancelLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.counts.delay = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		other := make(chan Decision)
		go func() {
			time.Sleep(time.Microsecond)
			other <- f.allow(alice)
		}()
		if _, err := f.Allow(ctx, API, alice); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("caller with a deadline got %v, want DeadlineExceeded", err)
		}
		if d := <-other; !d.Allowed || f.counts.round() != 1 {
			t.Errorf("caller without a deadline got %+v in %d round trips, want allowed in 1", d, f.counts.round())
		}
	})
}

// A grant that arrives after its window ended in the store would be spent in
// the next window, on top of that one's limit.
func TestPermitsExpireWithTheirWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(600, time.Second))
		start := time.Now()
		f.allow(alice)
		f.counts.delay = 10 * time.Millisecond
		for range 500 {
			before := time.Now()
			f.allow(alice)
			b := f.bucket(bucketKey{tier: API, client: alice})
			if w := f.counts.byKey["ip:api:203.0.113.7"]; b.ends.After(w.ends) {
				t.Fatalf("after %v the window ends %v later here than in the store", before.Sub(start), b.ends.Sub(w.ends))
			}
			time.Sleep(7 * time.Millisecond)
		}
	})
}

func TestTeamQuotaIsPerUTCDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // starts at midnight UTC
		f := newFixture(t, &Limits{})
		time.Sleep(23 * time.Hour)
		take := func(team string) Decision {
			d, err := f.AllowTeam(t.Context(), team, 3)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		for range 3 {
			if !take("t1").Allowed {
				t.Fatal("refused within the quota")
			}
		}
		d := take("t1")
		if d.Allowed || d.Reset != time.Hour || d.Window != 24*time.Hour || d.Limit != 3 || d.Remaining != 0 {
			t.Errorf("over the quota: %+v", d)
		}
		if !take("t2").Allowed {
			t.Error("teams share a quota")
		}
		time.Sleep(time.Hour - 1)
		if take("t1").Allowed {
			t.Error("allowed before midnight")
		}
		time.Sleep(time.Nanosecond)
		if !take("t1").Allowed {
			t.Error("refused on the new day")
		}
		if _, ok := f.counts.byKey["team:t1:2000-01-02"]; !ok {
			t.Errorf("counted as %v", f.counts.byKey)
		}
		if d, _ := f.AllowTeam(t.Context(), "t3", 0); d.Allowed {
			t.Error("a quota of nought allowed a request")
		}
	})
}

func TestAllowDoesNotAllocateWithinLease(t *testing.T) {
	f := newFixture(t, limitsOf(1_000_000_000, time.Hour))
	ctx := context.Background()
	for range 5000 { // until leases are big
		f.allow(alice)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = f.Allow(ctx, API, alice) }); n > 0.1 {
		t.Errorf("%v allocations a request", n)
	}
}

func BenchmarkAllow(b *testing.B) {
	l := newFixture(nil, limitsOf(1_000_000_000, time.Hour))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = l.Allow(context.Background(), API, alice)
		}
	})
}

func TestCloseWaitsForLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1, time.Minute))
		f.counts.delay = time.Second
		failed := make(chan error, 1)
		go func() {
			_, err := f.Allow(t.Context(), API, alice)
			failed <- err
		}()
		synctest.Wait()
		f.Close()
		if f.counts.round() != 1 {
			t.Error("Close did not wait for the lease")
		}
		<-failed
		if _, err := f.Allow(t.Context(), API, netip.MustParseAddr("203.0.113.8")); !errors.Is(err, background.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	})
}
