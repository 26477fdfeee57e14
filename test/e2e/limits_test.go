package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/cache"
	"telapi/internal/ratelimit"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
)

const capabilities = "/api/v1/runtime/capabilities"

func setLimit(t *testing.T, i *boot.Instance, tier ratelimit.Tier, most int64, window time.Duration) {
	t.Helper()
	err := i.App.Admin().Limits.Change(t.Context(), func(limits ratelimit.Limits) (ratelimit.Limits, error) {
		return limits.With(tier, ratelimit.Limit{Max: most, WindowMs: window.Milliseconds()})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// policyOf is the limit a response announces for a policy.
func policyOf(t *testing.T, i *boot.Instance, key, policy string) string {
	t.Helper()
	resp, _ := call(t, i, "GET", capabilities, "X-API-Key", key)
	for _, p := range resp.Header.Values("RateLimit-Policy") {
		if strings.HasPrefix(p, `"`+policy+`"`) {
			return p
		}
	}
	return ""
}

// Two instances on one Redis and PostgreSQL share one limit: together they let
// through no more than it, and at least 98 % of it.
func TestTwoInstancesShareOneLimit(t *testing.T) {
	env := realStores(t)
	a, b := boot.Start(t, env), boot.Start(t, env)
	own := newTenant(t, a, "own")
	const most = 500
	setLimit(t, a, ratelimit.API, most, time.Hour)
	var allowed, refused atomic.Int64
	for _, i := range []*boot.Instance{a, b} {
		poll.Until(t, "the new limit is in force", func() bool {
			allowed.Add(1) // the question counts too
			return policyOf(t, i, own.key, "api") == fmt.Sprintf(`"api";q=%d;w=3600`, most)
		})
	}
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for range 2 * most / 8 {
				resp, _ := call(t, []*boot.Instance{a, b}[n%2], "GET", capabilities, "X-API-Key", own.key)
				switch resp.StatusCode {
				case 200:
					allowed.Add(1)
				case 429:
					refused.Add(1)
				default:
					t.Errorf("got %d", resp.StatusCode)
				}
			}
		})
	}
	wg.Wait()
	if got := allowed.Load(); got > most || got < most*98/100 || refused.Load() == 0 {
		t.Errorf("%d requests were let through and %d refused; the limit is %d", got, refused.Load(), most)
	}
	resp, body := call(t, a, "GET", capabilities, "X-API-Key", own.key)
	wantStatus(t, resp, body, 429, code("RATE_LIMIT_EXCEEDED"))
	for _, part := range []string{`"limit":"ip"`, `"tier":"api"`, `"max":500`, `"window":3600`, `"resetAt":"`} {
		if !strings.Contains(body, part) {
			t.Errorf("429 says no %s: %s", part, body)
		}
	}
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("429 has headers %v", resp.Header)
	}
	if health, _ := call(t, a, "GET", "/health"); health.StatusCode != 200 {
		t.Errorf("/health is limited: %d", health.StatusCode)
	}
}

func TestTwoInstancesShareDailyQuota(t *testing.T) {
	env := realStores(t)
	a, b := boot.Start(t, env), boot.Start(t, env)
	own, other := newTenant(t, a, "own"), newTenant(t, a, "other")
	quota := int64(20)
	if _, err := a.App.Admin().Teams.SetQuota(t.Context(), own.team.ID, &quota); err != nil {
		t.Fatal(err)
	}
	allowed := 0
	for n := range 60 {
		resp, body := call(t, []*boot.Instance{a, b}[n%2], "GET", capabilities, "X-API-Key", own.key)
		if resp.StatusCode == 200 {
			allowed++
			continue
		}
		wantStatus(t, resp, body, 429, `"limit":"team_daily_quota"`)
		if !strings.Contains(body, `"max":20`) || !strings.Contains(body, `"window":86400`) {
			t.Fatalf("quota refusal: %s", body)
		}
	}
	if allowed != int(quota) {
		t.Errorf("%d requests were let through, the quota is %d", allowed, quota)
	}
	if resp, _ := call(t, a, "GET", capabilities, "X-API-Key", other.key); resp.StatusCode != 200 {
		t.Errorf("another team is refused: %d", resp.StatusCode)
	}
}

func TestRevocationIsAnnouncedToAllInstances(t *testing.T) {
	env := realStores(t)
	a, b := boot.Start(t, env), boot.Start(t, env)
	own := newTenant(t, a, "own")
	for _, i := range []*boot.Instance{a, b} {
		eventuallyStatus(t, i, 20*time.Second, 200, capabilities, "X-API-Key", own.key)
	}
	if err := a.App.Admin().Keys.Revoke(t.Context(), own.keyID); err != nil {
		t.Fatal(err)
	}
	for _, i := range []*boot.Instance{a, b} {
		eventuallyStatus(t, i, cache.TTL/2, 401, capabilities, "X-API-Key", own.key) // not because what was cached grew old
	}
}

func TestLimitsReloadAndSurviveFlush(t *testing.T) {
	redis := servers.StartRedis(t)
	env := boot.Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": redis.URL()}
	a := boot.Start(t, env)
	own := newTenant(t, a, "own")
	inForce := func(i *boot.Instance, want string) {
		t.Helper()
		poll.Until(t, "the limit is "+want, func() bool { return policyOf(t, i, own.key, "api") == want })
	}
	inForce(a, `"api";q=600;w=60`)

	setLimit(t, a, ratelimit.API, 700, time.Minute)
	inForce(a, `"api";q=700;w=60`)

	t.Run("saved by the console", func(t *testing.T) {
		redis.MustDo("SET", "telapi:limits", `{"tiers":{"api":{"max":800,"windowMs":60000}}}`)
		redis.MustDo("PUBLISH", "telapi:announce", "limits")
		inForce(a, `"api";q=800;w=60`)
	})
	t.Run("a bad value changes nothing", func(t *testing.T) {
		redis.MustDo("SET", "telapi:limits", `{"tiers":{"api":{"max":-1,"windowMs":60000}}}`)
		redis.MustDo("PUBLISH", "telapi:announce", "limits")
		poll.Until(t, "the bad value is reported", func() bool { return a.Log.Has("invalid rate limits") })
		inForce(a, `"api";q=800;w=60`)
		b := boot.Start(t, env)
		inForce(b, `"api";q=800;w=60`) // a new instance takes the last good one
	})
	t.Run("a wiped store", func(t *testing.T) {
		redis.MustDo("FLUSHALL")
		poll.Until(t, "the limits are restored", func() bool {
			limits, err := redis.Do("GET", "telapi:limits")
			return err == nil && strings.Contains(limits.String(), "800")
		})
		inForce(a, `"api";q=800;w=60`)
	})
}

func TestFailedAuthenticationIsLimited(t *testing.T) {
	i := boot.Start(t, nil)
	own := newTenant(t, i, "own")
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	poll.Until(t, "guessing ends in 429", func() bool {
		resp, _ := call(t, i, "GET", capabilities, "X-API-Key", "tk_guess_"+strings.Repeat("A", 43))
		return resp.StatusCode == 429
	})
	resp, body := call(t, i, "GET", capabilities)
	wantStatus(t, resp, body, 429, `"tier":"auth"`)
	if resp, body := call(t, i, "GET", capabilities, "X-API-Key", own.key); resp.StatusCode != 200 {
		t.Errorf("a good key from the same address: %d %s", resp.StatusCode, body)
	}
}

func TestForwardedForIsTrustedOnlyFromProxies(t *testing.T) {
	for _, c := range []struct {
		name, proxies string
		shared        bool
	}{
		{"nobody is trusted", "", true},
		{"loopback is trusted", "127.0.0.0/8,::1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := boot.Start(t, boot.Env{"TRUSTED_PROXIES": c.proxies})
			own := newTenant(t, i, "own")
			setLimit(t, i, ratelimit.API, 3, time.Hour)
			statuses := map[int]int{}
			for n := range 12 {
				resp, _ := call(t, i, "GET", capabilities, "X-API-Key", own.key, "X-Forwarded-For", fmt.Sprintf("203.0.113.77, 198.51.100.%d", n))
				statuses[resp.StatusCode]++
			}
			if shared := statuses[http.StatusTooManyRequests] > 0; shared != c.shared {
				t.Errorf("statuses %v", statuses)
			}
		})
	}
}

func TestRateLimitHeaders(t *testing.T) {
	i := boot.Start(t, nil)
	own := newTenant(t, i, "own")
	resp, _ := call(t, i, "GET", capabilities, "X-API-Key", own.key)
	policies, limits := resp.Header.Values("RateLimit-Policy"), resp.Header.Values("RateLimit")
	if strings.Join(policies, " ") != `"api";q=600;w=60 "team_daily_quota";q=50000;w=86400` {
		t.Errorf("RateLimit-Policy is %q", policies)
	}
	if len(limits) != 2 || !strings.HasPrefix(limits[0], `"api";r=`) || !strings.HasPrefix(limits[1], `"team_daily_quota";r=`) {
		t.Errorf("RateLimit is %q", limits)
	}
}
