package e2e

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"telapi/internal/cache"
	"telapi/test/boot"
	"telapi/test/servers"
)

// A store that is away at start is waited for; one that goes and comes back is
// used again, all without a restart.
func TestStoresRecoverFromOutage(t *testing.T) {
	redis, pg := servers.StartRedis(t), servers.StartPostgres(t, servers.PostgresOptions{})
	env := boot.Env{"DATABASE_URL": pg.URL(), "REDIS_URL": redis.URL()}
	redis.Stop()
	pg.Stop()

	i := boot.Launch(t, env)
	resp, body := call(t, i, "GET", "/health")
	wantStatus(t, resp, body, 503, `"status":"unavailable"`)
	if !strings.Contains(body, `"database":"unavailable"`) || !strings.Contains(body, `"kv":"unavailable"`) {
		t.Errorf("health says %s", body)
	}
	resp, body = call(t, i, "GET", capabilities, "X-API-Key", "tk_a_"+strings.Repeat("A", 43))
	wantStatus(t, resp, body, 503, code("SERVICE_UNAVAILABLE"))
	if resp.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}

	redis.Start()
	resp, body = call(t, i, "GET", "/health")
	wantStatus(t, resp, body, 503, `"database":"unavailable"`)
	pg.Start(t)
	eventuallyStatus(t, i, 20*time.Second, 200, "/health")
	own := newTenant(t, i, "own")
	eventuallyStatus(t, i, 20*time.Second, 200, capabilities, "X-API-Key", own.key)

	t.Run("the key-value store goes", func(t *testing.T) {
		redis.Kill()
		eventuallyStatus(t, i, 10*time.Second, 503, "/health")
		redis.Start()
		eventuallyStatus(t, i, 20*time.Second, 200, "/health")
		eventuallyStatus(t, i, 10*time.Second, 200, capabilities, "X-API-Key", own.key)
	})
	t.Run("the database goes", func(t *testing.T) {
		pg.Crash()
		eventuallyStatus(t, i, 10*time.Second, 503, "/health")
		eventuallyStatus(t, i, 10*time.Second, 503, "/api/v1/endpoints", "X-API-Key", own.key)
		pg.Start(t)
		eventuallyStatus(t, i, 20*time.Second, 200, "/health")
		eventuallyStatus(t, i, 10*time.Second, 200, "/api/v1/endpoints", "X-API-Key", own.key)
	})
	for _, word := range []string{"is unavailable", "is available again"} {
		if !i.Log.Has(word) {
			t.Errorf("the log does not say that a store %s", word)
		}
	}
}

func TestWebhookOnlyInstanceNeedsNoDatabase(t *testing.T) {
	i := boot.Launch(t, boot.Env{
		"FEATURE_API_ACCESS": "false",
		"DATABASE_URL":       "postgres://nobody@127.0.0.1:1/none",
		"REDIS_URL":          servers.StartRedis(t).URL(),
	})
	eventuallyStatus(t, i, 10*time.Second, 200, "/health")
	if _, body := call(t, i, "GET", "/health"); !strings.Contains(body, `"database":"unavailable"`) {
		t.Errorf("health says %s", body)
	}
}

func TestHealthIsDegradedWithoutMediaService(t *testing.T) {
	i := boot.Start(t, boot.Env{"TTS_MEDIA_CACHE_BASE_URL": "https://127.0.0.1:1"})
	resp, body := call(t, i, "GET", "/health")
	wantStatus(t, resp, body, 200, `"media":"degraded"`)
}

// An instance that cannot hear announcements must not serve a key from its
// cache: the revocation might be the announcement it missed.
func TestCacheIsDroppedWithoutAnnouncements(t *testing.T) {
	redis := servers.StartRedis(t)
	env := boot.Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": redis.URL()}
	i := boot.Start(t, env)
	own := newTenant(t, i, "own")
	eventuallyStatus(t, i, 20*time.Second, 200, capabilities, "X-API-Key", own.key)

	redis.MustDo("CLIENT", "KILL", "TYPE", "pubsub")
	// Revoked in the database behind everybody's back: nothing is announced.
	db, err := sql.Open("pgx", env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE api_keys SET revoked_at = 1 WHERE id = $1", own.keyID); err != nil {
		t.Fatal(err)
	}
	eventuallyStatus(t, i, cache.TTL/2, 401, capabilities, "X-API-Key", own.key)
}
