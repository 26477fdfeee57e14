package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestDecisionReportsRemainingAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(100, time.Minute))
		for i := range int64(5) {
			want := Decision{Policy: "api", Allowed: true, Limit: 100, Remaining: 99 - i, Reset: time.Minute - time.Duration(i)*time.Second, Window: time.Minute}
			testkit.Equal(t, fmt.Sprintf("request %d", i+1), f.allow(clientA), want)
			time.Sleep(time.Second)
		}
	})
}

func TestDecisionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limitsOf(3, time.Minute))
		f.allowUntilRejected(clientA)
		for decision, want := range map[string]float64{"allowed": 3, "rejected": 1, "failed": 0} {
			if got := testkit.MetricValue(t, f.decisions.WithLabelValues("api", decision)); got != want {
				t.Errorf("%v %s, want %v", got, decision, want)
			}
		}
	})
}

// A grant has a permit for each waiting caller. Callers that have left do not count.
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
		testkit.Equal(t, "requested grants of permits", f.counter.requested, slices.Repeat([]int64{1}, 10))
	})
}

func TestBucketNames(t *testing.T) {
	for want, name := range map[string]string{
		"session:ses_1":        handshakesName("ses_1"),
		"team:t1:1970-01-03":   quotaName("t1", time.Unix(0, 0).Add(3*day-time.Second)),
		"ip:api:203.0.113.7":   clientName(API, clientA),
		"ip:api:2001:db8::/64": clientName(API, netip.MustParseAddr("2001:db8::1")),
	} {
		testkit.Equal(t, "name", name, want)
	}
}

// HandshakeRejection must not reject a session that AllowHandshake would accept.
func TestHandshakeIsRejectedOnlyWhenUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			permits, remaining int64
			ends               time.Duration
			rejected           bool
		}{
			"used up":               {0, 0, time.Second, true},
			"this instance has one": {1, 0, time.Second, false},
			"the store has one":     {0, 1, time.Second, false},
			"the window has ended":  {0, 0, 0, false},
		} {
			f := newFixture(t, limitsOf(1, time.Minute))
			b := f.bucket("session:ses_1")
			b.permits, b.remaining, b.ends = tt.permits, tt.remaining, time.Now().Add(tt.ends)
			d, rejected := f.HandshakeRejection("ses_1", 30)
			if want := (Decision{Policy: sessionPolicy, Limit: 30, Window: time.Minute, Reset: tt.ends}); rejected != tt.rejected || d != want {
				t.Errorf("%s: rejected %t with %+v, want %t with %+v", name, rejected, d, tt.rejected, want)
			}
			if _, rejected := f.HandshakeRejection("ses_2", 30); rejected {
				t.Errorf("%s: another session is rejected", name)
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

func TestDecisionHeadersAndError(t *testing.T) {
	for name, tc := range map[string]struct {
		d                       Decision
		policy, header, details string
		message                 string // without the time to wait
		retryAfter              time.Duration
	}{
		"tier": {
			Decision{Policy: "api", Limit: 600, Remaining: 598, Reset: 41500 * time.Millisecond, Window: time.Minute},
			`"api";q=600;w=60`, `"api";r=598;t=42`,
			`{"limit":"ip","tier":"api","max":600,"window":60,"resetAt":"2000-01-01T00:00:42Z"}`, "Too many requests from your address.", 42 * time.Second,
		},
		"daily quota": {
			Decision{Policy: teamPolicy, Limit: 50_000, Reset: time.Hour, Window: 24 * time.Hour},
			`"team_daily_quota";q=50000;w=86400`, `"team_daily_quota";r=0;t=3600`,
			`{"limit":"team_daily_quota","max":50000,"window":86400,"resetAt":"2000-01-01T01:00:00Z"}`, "Your team's daily quota is used up.", time.Hour,
		},
		"handshakes": {
			Decision{Policy: sessionPolicy, Limit: 30, Reset: time.Second, Window: time.Minute},
			`"session_handshakes";q=30;w=60`, `"session_handshakes";r=0;t=1`,
			`{"limit":"session_handshakes","max":30,"window":60,"resetAt":"2000-01-01T00:00:01Z"}`, "The session has opened too many connections.", time.Second,
		},
		"window about to end": {
			Decision{Policy: "auth", Limit: 1, Reset: 0, Window: 1500 * time.Millisecond},
			`"auth";q=1;w=2`, `"auth";r=0;t=0`,
			`{"limit":"ip","tier":"auth","max":1,"window":2,"resetAt":"2000-01-01T00:00:01Z"}`, "Too many requests from your address.", time.Second,
		},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			testkit.Equal(t, "RateLimit-Policy", tc.d.PolicyHeader(), tc.policy)
			testkit.Equal(t, "RateLimit", tc.d.Header(), tc.header)
			rejection := tc.d.Rejection()
			details, err := json.Marshal(rejection.Details)
			if err != nil || string(details) != tc.details {
				t.Errorf("details: %s, %v; want %s", details, err, tc.details)
			}
			if !strings.HasPrefix(rejection.Message, tc.message+" Try again in ") {
				t.Errorf("message %q, want %q", rejection.Message, tc.message)
			}
			if rejection.Code != fault.RateLimitExceeded || rejection.RetryAfter != tc.retryAfter {
				t.Errorf("error %s with Retry-After %v, want %s with %v", rejection.Code, rejection.RetryAfter, fault.RateLimitExceeded, tc.retryAfter)
			}
		})
	}
}

func TestParseLimits(t *testing.T) {
	changed := DefaultLimits()
	changed.Tiers.API = Limit{10, 1000}
	for name, tc := range map[string]struct {
		value string
		want  Limits
	}{
		"no tier: defaults":                  {`{"tiers":{}}`, DefaultLimits()},
		"one tier: the others have defaults": {` {"tiers": {"api":{"windowMs":1000,"max":10}}} `, changed},
		"output of JSON":                     {string(changed.JSON()), changed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseLimits([]byte(tc.value))
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

func TestParseLimitsReportsAllIssues(t *testing.T) {
	for value, want := range map[string][]string{
		`[]`:                              {" invalid_type"},
		`null`:                            {"/tiers required"},
		`{}`:                              {"/tiers required"},
		`{"tiers":null}`:                  {"/tiers required"},
		`{"tiers":{},"Tiers":1,"a/b":1}`:  {"/Tiers unknown_key", "/a~1b unknown_key"},
		`{"tiers":{"api":null,"API":{}}}`: {"/tiers/API unknown_key"},
		`{"tiers":{"api":{}}}`:            {"/tiers/api/max required", "/tiers/api/windowMs required"},
		`{"tiers":{"api":{"max":0,"windowMs":999}}}`:                           {"/tiers/api/max too_small", "/tiers/api/windowMs too_small"},
		`{"tiers":{"api":{"max":1000000001,"windowMs":86400001}}}`:             {"/tiers/api/max too_large", "/tiers/api/windowMs too_large"},
		`{"tiers":{"api":{"max":"10","windowMs":1e2}}}`:                        {"/tiers/api/max invalid_type", "/tiers/api/windowMs too_small"},
		`{"tiers":{"auth":{"max":1.5,"windowMs":99999999999999999999,"x":1}}}`: {"/tiers/auth/max invalid_type", "/tiers/auth/windowMs invalid_type", "/tiers/auth/x unknown_key"},
		`{"tiers":{"api":{"max":null,"windowMs":true}}}`:                       {"/tiers/api/windowMs invalid_type", "/tiers/api/max required"},
	} {
		t.Run(value, func(t *testing.T) {
			_, err := ParseLimits([]byte(value))
			testkit.Equal(t, "issues", testkit.Issues(err), want)
		})
	}
}

func TestParseLimitsRejectsInvalidJSON(t *testing.T) {
	for _, value := range []string{``, `{`, `{"tiers":{}}{}`, `{"tiers":{},"tiers":{}}`, "{\"tiers\":{\"\xff\":1}}"} {
		testkit.WantFault(t, fmt.Sprintf("%q", value), testkit.ErrorOf(ParseLimits([]byte(value))), fault.MalformedJSON)
	}
}

func FuzzParseLimits(f *testing.F) {
	f.Add(DefaultLimits().JSON())
	f.Add([]byte(`{"tiers":{"api":{"max":-0,"windowMs":1000}}}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		limits, err := ParseLimits(value)
		if err != nil {
			if code := fault.From(err).Code; code != fault.Validation && code != fault.MalformedJSON {
				t.Fatalf("error %v, want %s or %s", err, fault.Validation, fault.MalformedJSON)
			}
			return
		}
		if again, err := ParseLimits(limits.JSON()); err != nil || again != limits {
			t.Fatalf("%+v parsed again is %+v, %v", limits, again, err)
		}
	})
}
