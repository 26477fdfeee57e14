package e2e

import (
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// An instance waits for stores that are unavailable at start and reconnects after
// an outage, without a restart.
func TestStoresRecoverFromOutage(t *testing.T) {
	t.Parallel()
	redis, pg := testkit.StartRedis(t), testkit.StartPostgres(t, testkit.PostgresOptions{})
	env := harness.Env{"DATABASE_URL": pg.URL(), "REDIS_URL": redis.URL()}
	redis.Stop()
	pg.Stop()

	i := harness.Launch(t, env)
	resp, body := i.Call(t, "GET", "/health")
	wantStatus(t, resp, body, 503, `"status":"unavailable"`)
	if !strings.Contains(body, `"database":"unavailable"`) || !strings.Contains(body, `"kv":"unavailable"`) {
		t.Errorf("/health returned %s, want every unavailable store in it", body)
	}
	resp, body = i.Call(t, "GET", capabilities, "X-API-Key", "tk_a_"+strings.Repeat("A", 43))
	wantStatus(t, resp, body, 503, code("SERVICE_UNAVAILABLE"))
	if resp.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}

	redis.Start()
	expectStatus(t, 503, `"database":"unavailable"`)(i.Call(t, "GET", "/health"))
	pg.Start(t)
	waitForStatus(t, i, 200, "/health")
	tenant := harness.NewTenant(t, i, "tenant")
	waitForStatus(t, i, 200, capabilities, "X-API-Key", tenant.Key)

	t.Run("Redis outage", func(t *testing.T) {
		redis.Kill()
		waitForStatus(t, i, 503, "/health")
		redis.Start()
		waitForStatus(t, i, 200, "/health")
		waitForStatus(t, i, 200, capabilities, "X-API-Key", tenant.Key)
	})
	t.Run("database outage", func(t *testing.T) {
		pg.Crash()
		waitForStatus(t, i, 503, "/health")
		waitForStatus(t, i, 503, "/api/v1/endpoints", "X-API-Key", tenant.Key)
		pg.Start(t)
		waitForStatus(t, i, 200, "/health")
		waitForStatus(t, i, 200, "/api/v1/endpoints", "X-API-Key", tenant.Key)
	})
	for _, state := range []string{"is unavailable", "is available again"} {
		if !i.Log.Has(state) {
			t.Errorf("the log does not report that a store %s", state)
		}
	}
}

func TestHealthIsDegradedWithoutMediaService(t *testing.T) {
	i := harness.Start(t, harness.Env{"TTS_MEDIA_CACHE_BASE_URL": "https://127.0.0.1:1"})
	expectStatus(t, 200, `"media":"degraded"`)(i.Call(t, "GET", "/health"))
}

// Redis comes back without its data. Browsers are notified that history is lost,
// and the session continues in a new epoch of its channel.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	env, redis := harness.RealStores(t)
	svc := startService(t, env)
	b, token, ch := svc.conversation(t)
	cursor := sendNumbered(t, b, ch, 1, 3)[2]
	redis.Kill()
	redis.Start()
	if code := b.CloseCode(); code < 4000 || code >= 4500 {
		t.Errorf("close code %d, want one that allows reconnecting", code)
	}
	b = harness.Reconnect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	cursor = b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
	b.Expect(`{"recovered":false,"count":0}`)
	checkConversation(t, b, svc.afterLoss(t, ch))
	b.Cut()
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	b.Expect(`"event":"ready"`, `"resumed":true`)
	b.Expect("here too")
	b.Expect(`{"recovered":true,"count":1}`)
}
