package e2e

import (
	"database/sql"
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
	resp, body = i.Call(t, "GET", "/health")
	wantStatus(t, resp, body, 503, `"database":"unavailable"`)
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

func TestHealthIgnoresDatabaseWithoutAPIAccess(t *testing.T) {
	i := harness.Launch(t, harness.Env{
		"FEATURE_API_ACCESS": "false",
		"DATABASE_URL":       "postgres://user@127.0.0.1:1/none",
		"REDIS_URL":          testkit.StartRedis(t).URL(),
	})
	waitForStatus(t, i, 200, "/health")
	if _, body := i.Call(t, "GET", "/health"); !strings.Contains(body, `"database":"unavailable"`) {
		t.Errorf("/health returned %s, want every unavailable store in it", body)
	}
}

func TestHealthIsDegradedWithoutMediaService(t *testing.T) {
	i := harness.Start(t, harness.Env{"TTS_MEDIA_CACHE_BASE_URL": "https://127.0.0.1:1"})
	resp, body := i.Call(t, "GET", "/health")
	wantStatus(t, resp, body, 200, `"media":"degraded"`)
}

// An instance that does not receive announcements must not serve a key from its
// cache: it may have missed the revocation.
func TestCacheIsDroppedWithoutAnnouncements(t *testing.T) {
	redis := testkit.StartRedis(t)
	env := harness.Env{"DATABASE_URL": harness.Database(t), "REDIS_URL": redis.URL()}
	i := harness.Start(t, env)
	tenant := harness.NewTenant(t, i, "tenant")
	waitForStatus(t, i, 200, capabilities, "X-API-Key", tenant.Key)

	redis.MustDo("CLIENT", "KILL", "TYPE", "pubsub")
	// Revoke the key in the database only: nothing is announced.
	db, err := sql.Open("pgx", env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE api_keys SET revoked_at = 1 WHERE id = $1", tenant.KeyID); err != nil {
		t.Fatal(err)
	}
	waitForRevocation(t, i, tenant.Key)
}
