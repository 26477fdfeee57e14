package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/internal/cache"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

const capabilities = "/api/v1/runtime/capabilities"

func setLimit(t *testing.T, i *harness.Instance, tier ratelimit.Tier, limit int64, window time.Duration) {
	t.Helper()
	err := i.App.Admin().Limits.Change(t.Context(), func(limits ratelimit.Limits) (ratelimit.Limits, error) {
		*limits.Tier(tier) = ratelimit.Limit{Max: limit, WindowMs: window.Milliseconds()}
		return limits, nil
	})
	testkit.Must(t, err)
}

// rateLimitPolicy returns the given policy from the RateLimit-Policy header.
func rateLimitPolicy(t *testing.T, i *harness.Instance, key, policy string) string {
	t.Helper()
	resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", key)
	for p := range strings.SplitSeq(resp.Header.Get("RateLimit-Policy"), ", ") {
		if strings.HasPrefix(p, `"`+policy+`"`) {
			return p
		}
	}
	return ""
}

func TestRequestsAboveLimitAreRejected(t *testing.T) {
	i, tenant := startTenant(t, nil)
	const limit = 20
	setLimit(t, i, ratelimit.API, limit, time.Hour)
	testkit.Until(t, "requests are rejected", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
		return resp.StatusCode == 429
	})
	resp, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 429, code("RATE_LIMIT_EXCEEDED"))
	testkit.Contains(t, "body", body, `"limit":"ip"`, `"tier":"api"`, fmt.Sprintf(`"max":%d`, limit), `"window":3600`, `"resetAt":"`)
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("429 has headers %v, want Retry-After and RateLimit", resp.Header)
	}
	if health, _ := i.Call(t, "GET", "/health"); health.StatusCode != 200 {
		t.Errorf("/health: status %d, want 200: it is not limited", health.StatusCode)
	}
}

func TestTwoInstancesShareDailyQuota(t *testing.T) {
	env := realStores(t)
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant, other := harness.NewTenant(t, a, "tenant"), harness.NewTenant(t, a, "other")
	quota := int64(20)
	if _, err := a.App.Admin().Teams.Update(t.Context(), tenant.Team.ID, func(t *team.Team) error { t.DailyQuota = &quota; return nil }); err != nil {
		t.Fatal(err)
	}
	allowed, day := 0, time.Now().UTC().Truncate(24*time.Hour)
	for n := range 60 {
		resp, body := []*harness.Instance{a, b}[n%2].Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
		if resp.StatusCode == 200 {
			allowed++
			continue
		}
		wantStatus(t, resp, body, 429, `"limit":"team_daily_quota"`)
		if !strings.Contains(body, `"max":20`) || !strings.Contains(body, `"window":86400`) {
			t.Fatalf("429 body %s, want the quota and its window", body)
		}
	}
	highest := int(quota)
	if !time.Now().UTC().Truncate(24 * time.Hour).Equal(day) { // midnight has passed
		highest *= 2
	}
	if allowed < int(quota) || allowed > highest {
		t.Errorf("%d requests were allowed, want %d", allowed, quota)
	}
	if resp, _ := a.Call(t, "GET", capabilities, "X-API-Key", other.Key); resp.StatusCode != 200 {
		t.Errorf("other team: got %d, want 200", resp.StatusCode)
	}
}

func TestRevocationIsAnnouncedToAllInstances(t *testing.T) {
	env := realStores(t)
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant := harness.NewTenant(t, a, "tenant")
	for _, i := range []*harness.Instance{a, b} {
		waitForStatus(t, i, 200, capabilities, "X-API-Key", tenant.Key)
	}
	testkit.Must(t, a.App.Admin().Keys.Revoke(t.Context(), tenant.KeyID))
	for _, i := range []*harness.Instance{a, b} {
		waitForRevocation(t, i, tenant.Key)
	}
}

// waitForRevocation fails if the key is rejected only because a cache expired.
func waitForRevocation(t *testing.T, i *harness.Instance, key string) {
	t.Helper()
	testkit.Within(t, cache.TTL/2, "the revoked key gets 401", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", key)
		return resp.StatusCode == 401
	})
}

func TestLimitsOfConsoleApply(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	i, tenant := startTenant(t, harness.Env{"DATABASE_URL": harness.Database(t), "REDIS_URL": redis.URL()})
	waitForLimit := func(want string) {
		t.Helper()
		testkit.Until(t, "the limit is "+want, func() bool { return rateLimitPolicy(t, i, tenant.Key, "api") == want })
	}
	waitForLimit(`"api";q=600;w=60`)
	redis.MustDo("SET", "telapi:limits", `{"tiers":{"api":{"max":800,"windowMs":60000}}}`)
	redis.MustDo("PUBLISH", "telapi:announce", "limits")
	waitForLimit(`"api";q=800;w=60`)
}

func TestFailedAuthenticationIsLimited(t *testing.T) {
	i, tenant := startTenant(t, nil)
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	testkit.Until(t, "wrong keys get 429", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", "tk_guess_"+strings.Repeat("A", 43))
		return resp.StatusCode == 429
	})
	expectStatus(t, 429, `"tier":"auth"`)(i.Call(t, "GET", capabilities))
	if resp, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key); resp.StatusCode != 200 {
		t.Errorf("valid key from the same address: %d %s, want 200", resp.StatusCode, body)
	}
}

func TestRateLimitHeaders(t *testing.T) {
	i, tenant := startTenant(t, nil)
	resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
	policies, limits := resp.Header.Values("RateLimit-Policy"), resp.Header.Values("RateLimit")
	if want := `"api";q=600;w=60, "team_daily_quota";q=50000;w=86400`; len(policies) != 1 || policies[0] != want {
		t.Errorf("RateLimit-Policy has the lines %q, want one: %s", policies, want)
	}
	want := regexp.MustCompile(`^"api";r=\d+;t=\d+, "team_daily_quota";r=\d+;t=\d+$`)
	if len(limits) != 1 || !want.MatchString(limits[0]) {
		t.Errorf("RateLimit has the lines %q, want one like %s", limits, want)
	}
}
