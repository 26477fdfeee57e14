package harness

import (
	"context"
	"testing"

	"telapi/internal/redact"
	"telapi/internal/sqlstore"
	"telapi/test/testkit"
)

// RealStores returns the settings of a migrated PostgreSQL database and a Redis
// server, and the Redis server.
func RealStores(t testing.TB, options ...testkit.RedisOption) (Env, *testkit.Redis) {
	t.Helper()
	redis := testkit.StartRedis(t, options...)
	return Env{"DATABASE_URL": Database(t), "REDIS_URL": redis.URL()}, redis
}

// ClusterStores returns the settings of a migrated PostgreSQL database and an empty
// Redis cluster.
func ClusterStores(t testing.TB) Env {
	t.Helper()
	return Env{"DATABASE_URL": Database(t), "REDIS_URL": testkit.SharedRedisCluster(t).URL()}
}

// Database returns the URL of a migrated PostgreSQL database for the test.
func Database(t testing.TB) string {
	t.Helper()
	return testkit.SharedPostgres(t).Clone(t, func(url string) {
		db, err := sqlstore.Open(sqlstore.Options{DSN: redact.Secret(url)})
		testkit.Must(t, err)
		defer func() { _ = db.Close() }()
		testkit.Must(t, db.Migrate(context.Background()))
	})
}
