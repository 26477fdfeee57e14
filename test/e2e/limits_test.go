package e2e

import (
	"fmt"
	"net/http"
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
		return limits.With(tier, ratelimit.Limit{Max: limit, WindowMs: window.Milliseconds()})
	})
	if err != nil {
		t.Fatal(err)
	}
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
	i := harness.Start(t, nil)
	tenant := harness.NewTenant(t, i, "tenant")
	const limit = 20
	setLimit(t, i, ratelimit.API, limit, time.Hour)
	testkit.Until(t, "requests are rejected", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
		return resp.StatusCode == 429
	})
	resp, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 429, code("RATE_LIMIT_EXCEEDED"))
	for _, part := range []string{`"limit":"ip"`, `"tier":"api"`, fmt.Sprintf(`"max":%d`, limit), `"window":3600`, `"resetAt":"`} {
		if !strings.Contains(body, part) {
			t.Errorf("429 body %s, want %s in it", body, part)
		}
	}
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
	allowed := 0
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
	if allowed != int(quota) {
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
	if err := a.App.Admin().Keys.Revoke(t.Context(), tenant.KeyID); err != nil {
		t.Fatal(err)
	}
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

func TestLimitsReloadAndSurviveFlush(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	env := harness.Env{"DATABASE_URL": harness.Database(t), "REDIS_URL": redis.URL()}
	a := harness.Start(t, env)
	tenant := harness.NewTenant(t, a, "tenant")
	waitForLimit := func(i *harness.Instance, want string) {
		t.Helper()
		testkit.Until(t, "the limit is "+want, func() bool { return rateLimitPolicy(t, i, tenant.Key, "api") == want })
	}
	waitForLimit(a, `"api";q=600;w=60`)

	setLimit(t, a, ratelimit.API, 700, time.Minute)
	waitForLimit(a, `"api";q=700;w=60`)

	t.Run("change by the console", func(t *testing.T) {
		redis.MustDo("SET", "telapi:limits", `{"tiers":{"api":{"max":800,"windowMs":60000}}}`)
		redis.MustDo("PUBLISH", "telapi:announce", "limits")
		waitForLimit(a, `"api";q=800;w=60`)
	})
	t.Run("invalid value is ignored", func(t *testing.T) {
		redis.MustDo("SET", "telapi:limits", `{"tiers":{"api":{"max":-1,"windowMs":60000}}}`)
		redis.MustDo("PUBLISH", "telapi:announce", "limits")
		testkit.Until(t, "the invalid value is logged", func() bool { return a.Log.Has("invalid rate limits") })
		waitForLimit(a, `"api";q=800;w=60`)
		b := harness.Start(t, env)
		waitForLimit(b, `"api";q=800;w=60`) // a new instance uses the last valid limits
	})
	t.Run("flushed store", func(t *testing.T) {
		redis.MustDo("FLUSHALL")
		testkit.Until(t, "the limits are restored", func() bool {
			limits, err := redis.Do("GET", "telapi:limits")
			return err == nil && strings.Contains(limits.String(), "800")
		})
		waitForLimit(a, `"api";q=800;w=60`)
	})
}

func TestFailedAuthenticationIsLimited(t *testing.T) {
	i := harness.Start(t, nil)
	tenant := harness.NewTenant(t, i, "tenant")
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	testkit.Until(t, "wrong keys get 429", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", "tk_guess_"+strings.Repeat("A", 43))
		return resp.StatusCode == 429
	})
	resp, body := i.Call(t, "GET", capabilities)
	wantStatus(t, resp, body, 429, `"tier":"auth"`)
	if resp, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key); resp.StatusCode != 200 {
		t.Errorf("valid key from the same address: %d %s, want 200", resp.StatusCode, body)
	}
}

func TestForwardedForIsTrustedOnlyFromProxies(t *testing.T) {
	for _, c := range []struct {
		name, proxies string
		shared        bool // all clients share one limit
	}{
		{"no trusted proxies", "", true},
		{"trusted loopback", "127.0.0.0/8,::1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := harness.Start(t, harness.Env{"TRUSTED_PROXIES": c.proxies})
			tenant := harness.NewTenant(t, i, "tenant")
			setLimit(t, i, ratelimit.API, 3, time.Hour)
			statuses := map[int]int{}
			for n := range 12 {
				resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key, "X-Forwarded-For", fmt.Sprintf("203.0.113.77, 198.51.100.%d", n))
				statuses[resp.StatusCode]++
			}
			if shared := statuses[http.StatusTooManyRequests] > 0; shared != c.shared {
				t.Errorf("statuses %v; one shared limit: %v, want %v", statuses, shared, c.shared)
			}
		})
	}
}

func TestRateLimitHeaders(t *testing.T) {
	i := harness.Start(t, nil)
	tenant := harness.NewTenant(t, i, "tenant")
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
