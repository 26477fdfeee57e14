package testkit

import (
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func TestSharedClusterIsEmptyAndUsedByOneTestAtATime(t *testing.T) {
	var users atomic.Int32
	for range 3 {
		t.Run("test", func(t *testing.T) {
			t.Parallel()
			c := SharedRedisCluster(t)
			t.Cleanup(func() { users.Add(-1) })
			if n := users.Add(1); n != 1 {
				t.Errorf("%d tests use the cluster, want 1", n)
			}
			for _, node := range c.Nodes {
				m := node.MustDo("DBSIZE")
				if size, err := m.AsInt64(); err != nil || size != 0 {
					t.Errorf("%d keys (%v), want 0", size, err)
				}
			}
			reply := c.Nodes[0].MustDo("CLUSTER", "KEYSLOT", "a")
			slot, _ := reply.AsInt64()
			c.Nodes[slot*masters/clusterSlots].MustDo("SET", "a", "left behind")
		})
	}
}

func TestDatabaseOfSharedPostgresIsDropped(t *testing.T) {
	var database string
	t.Run("test", func(t *testing.T) { database = SharedPostgres(t).NewDatabase(t) })
	if conn, err := pgx.Connect(t.Context(), database); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("database exists after the test, want an error")
	}
}
