package servers

import (
	"errors"
	"strings"
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
