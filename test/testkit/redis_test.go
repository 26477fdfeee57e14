package testkit

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
)

func TestRestartedRedisKeepsPortAndData(t *testing.T) {
	t.Parallel()
	r := StartRedis(t, RedisDurable(), RedisPassword("s3cret"), RedisTLS(NewCA(t)))
	r.MustDo("SET", "k", "v")
	addr := r.Addr()
	r.Kill()
	if _, err := r.Do("PING"); err == nil {
		t.Fatal("killed server replied, want an error")
	}
	r.Start()
	m := r.MustDo("GET", "k")
	if v, _ := m.ToString(); v != "v" || r.Addr() != addr {
		t.Errorf("GET k returned %q from %s, want v from %s", v, r.Addr(), addr)
	}
}

func TestClusterIsReadyAfterRestart(t *testing.T) {
	t.Parallel()
	c := StartRedisCluster(t)
	for _, node := range c.Nodes {
		node.Kill()
	}
	for _, node := range c.Nodes {
		node.Start()
	}
	c.AwaitOK()
}

func TestReplicaReplacesKilledMaster(t *testing.T) {
	t.Parallel()
	c := StartRedisCluster(t)
	replica := c.AddReplica(c.Nodes[1])
	c.Nodes[1].Kill()
	replica.proc.await(t, func() error {
		m := replica.MustDo("INFO", "replication")
		if info, _ := m.ToString(); !strings.Contains(info, "role:master") {
			return errors.New("still a replica")
		}
		return nil
	})
}

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
