package boot

import (
	"testing"

	"telapi/test/servers"
)

// RealStores returns the settings of an empty PostgreSQL database and a Redis
// server, and the Redis server.
func RealStores(t testing.TB, options ...servers.RedisOption) (Env, *servers.Redis) {
	redis := servers.StartRedis(t, options...)
	return Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": redis.URL()}, redis
}

// ClusterStores returns the settings of an empty PostgreSQL database and a Redis
// cluster.
func ClusterStores(t testing.TB) Env {
	return Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": servers.StartRedisCluster(t).URL()}
}
