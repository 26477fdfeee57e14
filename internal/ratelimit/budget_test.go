package ratelimit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestTeamGetsItsShare(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := NewBudget(registry, "things", "Things", 10, 40)
	if err := NewBudget(registry, "others", "Others", 1, 100).Take("", 2); err == nil {
		t.Error("got more than the budget")
	}
	for i, step := range []struct {
		team string
		n    int64 // negative: return
		code fault.Code
	}{
		{"a", 3, ""}, {"a", 2, fault.RateLimitExceeded}, {"a", 1, ""}, {"a", 1, fault.RateLimitExceeded},
		{"b", 4, ""}, {"b", 1, fault.RateLimitExceeded},
		{"c", 3, fault.ServiceUnavailable}, {"c", 2, ""}, {"", 1, fault.ServiceUnavailable}, {"a", 1, fault.ServiceUnavailable},
		{"a", -4, ""}, {"c", 2, ""}, {"", 2, ""},
		{"b", -4, ""}, {"c", -4, ""}, {"", 8, ""}, {"", -10, ""},
	} {
		if step.n < 0 {
			b.Return(step.team, -step.n)
			continue
		}
		checked, err := b.Check(step.team, step.n), b.Take(step.team, step.n)
		if step.code == "" && (err != nil || checked != nil) {
			t.Errorf("step %d: %v, %v", i, err, checked)
		}
		if step.code == "" {
			continue
		}
		want := map[fault.Code]exceeded{fault.RateLimitExceeded: {"things", 4}, fault.ServiceUnavailable: {"things", 10}}[step.code]
		if e := fault.From(err); e.Code != step.code || e.Details != want || e.RetryAfter == 0 || !fault.Is(checked, step.code) {
			t.Errorf("step %d: %v with details %v, want %s with %v", i, err, e.Details, step.code, want)
		}
	}
	if b.Used() != 0 || len(b.holders) != 0 {
		t.Errorf("%d used by %v at the end, want nothing", b.Used(), b.holders)
	}
	// Check counts too.
	for name, want := range map[string]float64{"things share": 6, "things total": 6, "others share": 0, "others total": 1} {
		if n := testkit.Metrics(t, registry)["telapi_budget_rejections_total "+name]; n != want {
			t.Errorf("%v rejections of %s, want %v", n, name, want)
		}
	}
}

// Only the requests of the team that has its share wait.
func TestWaitEndsWhenTheTeamReturnsSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(prometheus.NewRegistry(), "things", "Things", 10, 50)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 2)
		wait := func(team string, n int64) {
			if err := b.Wait(ctx, team, n); err != nil {
				t.Error(err)
			}
		}
		wait("a", 5)
		go func() { done <- b.Wait(ctx, "a", 2) }()
		synctest.Wait()
		wait("b", 5)
		b.Return("b", 5) // does not help
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("got more than the share: %v", err)
		default:
		}
		b.Return("a", 2)
		testkit.Must(t, <-done)
		go func() { done <- b.Wait(ctx, "a", 1) }()
		if err := <-done; !fault.Is(err, fault.RateLimitExceeded) || fault.From(err).RetryAfter == 0 {
			t.Errorf("after the deadline: %v, want RATE_LIMIT_EXCEEDED", err)
		}
	})
}

func TestReturnWakesAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(prometheus.NewRegistry(), "things", "Things", 2, 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		testkit.Must(t, b.Wait(ctx, "a", 2))
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- b.Wait(ctx, "a", 1) }()
		}
		synctest.Wait()
		b.Return("a", 2)
		testkit.Must(t, <-done)
		testkit.Must(t, <-done)
	})
}
