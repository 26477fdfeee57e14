package ratelimit

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestDecisionReportsRemainingAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(100, time.Minute))
		for i := range int64(5) {
			want := Decision{Policy: "api", Allowed: true, Limit: 100, Remaining: 99 - i, Reset: time.Minute - time.Duration(i)*time.Second, Window: time.Minute}
			if got := f.allow(clientA); got != want {
				t.Errorf("request %d: %+v, want %+v", i+1, got, want)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestDecisionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(3, time.Minute))
		f.allowUntilRefused(clientA)
		for decision, want := range map[string]float64{"allowed": 3, "refused": 1, "failed": 0} {
			if got := counterValue(f.decisions.WithLabelValues("api", decision)); got != want {
				t.Errorf("%v %s, want %v", got, decision, want)
			}
		}
	})
}

// A lease has a permit for each waiting caller. Callers that have left do not count.
func TestLeaseCountsOnlyWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(1000, time.Second))
		f.counter.err = errors.New("unreachable")
		for range 5 {
			if _, err := f.Allow(t.Context(), API, clientA); err == nil {
				t.Fatal("no error")
			}
		}
		f.counter.err = nil
		for range 5 {
			f.allow(clientA)
			time.Sleep(time.Second)
		}
		if want := slices.Repeat([]int64{1}, 10); !slices.Equal(f.counter.requested, want) {
			t.Errorf("requested leases of %v permits, want %v", f.counter.requested, want)
		}
	})
}

func TestBucketNames(t *testing.T) {
	for want, key := range map[string]bucketKey{
		"session:ses_1":        {session: "ses_1"},
		"team:t1:1970-01-03":   {team: "t1", day: 2},
		"ip:api:203.0.113.7":   {tier: API, client: clientA},
		"ip:api:2001:db8::/64": {tier: API, client: netip.MustParseAddr("2001:db8::")},
	} {
		if got := key.String(); got != want {
			t.Errorf("name %q, want %q", got, want)
		}
	}
}

// HandshakeRefusal must not refuse a session that AllowHandshake would accept.
func TestHandshakeIsRefusedOnlyWhenUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			permits, remaining int64
			ends               time.Duration
			refused            bool
		}{
			"used up":               {0, 0, time.Second, true},
			"this instance has one": {1, 0, time.Second, false},
			"the store has one":     {0, 1, time.Second, false},
			"the window has ended":  {0, 0, 0, false},
		} {
			f := newFixture(t, limitsOf(1, time.Minute))
			b := f.bucket(bucketKey{session: "ses_1"})
			b.permits, b.remaining, b.ends = tt.permits, tt.remaining, time.Now().Add(tt.ends)
			d, refused := f.HandshakeRefusal("ses_1", 30)
			if want := (Decision{Policy: sessionPolicy, Limit: 30, Window: time.Minute, Reset: tt.ends}); refused != tt.refused || d != want {
				t.Errorf("%s: refused %t with %+v, want %t with %+v", name, refused, d, tt.refused, want)
			}
			if _, refused := f.HandshakeRefusal("ses_2", 30); refused {
				t.Errorf("%s: another session is refused", name)
			}
		}
	})
}

// grants returns the names that it is called with, or an error.
type grants struct {
	names []string
	err   error
}

func (g *grants) Granted(_ context.Context, names []string) ([]int64, error) {
	g.names = names
	return []int64{7}, g.err
}

func TestUsedTodayCountsTheUTCDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // starts at midnight UTC 2000-01-01
		time.Sleep(36 * time.Hour)
		counts := &grants{}
		used, err := UsedToday(t.Context(), counts, "t1", "t2")
		if want := []string{"team:t1:2000-01-02", "team:t2:2000-01-02"}; err != nil || !slices.Equal(used, []int64{7}) || !slices.Equal(counts.names, want) {
			t.Errorf("used %v of %q, %v; want 7 of %q", used, counts.names, err, want)
		}
		counts.err = errors.New("unreachable")
		if _, err := UsedToday(t.Context(), counts, "t1"); !errors.Is(err, counts.err) {
			t.Errorf("error %v, want %v", err, counts.err)
		}
	})
}
