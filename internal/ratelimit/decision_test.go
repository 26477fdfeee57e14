package ratelimit

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
)

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := tc.d.PolicyHeader(); got != tc.policy {
					t.Errorf("RateLimit-Policy: got %s, want %s", got, tc.policy)
				}
				if got := tc.d.Header(); got != tc.header {
					t.Errorf("RateLimit: %s, want %s", got, tc.header)
				}
				refusal := tc.d.Refusal()
				details, err := json.Marshal(refusal.Details)
				if err != nil || string(details) != tc.details {
					t.Errorf("details: %s, %v; want %s", details, err, tc.details)
				}
				if !strings.HasPrefix(refusal.Message, tc.message+" Try again in ") {
					t.Errorf("message %q, want %q", refusal.Message, tc.message)
				}
				if refusal.Code != fault.RateLimitExceeded || refusal.RetryAfter != tc.retryAfter {
					t.Errorf("error %s with Retry-After %v, want %s with %v", refusal.Code, refusal.RetryAfter, fault.RateLimitExceeded, tc.retryAfter)
				}
			})
		})
	}
}
