package servers

import (
	"testing"
)

func TestKilledRedisComesBackOnItsPortWithItsData(t *testing.T) {
	t.Parallel()
	r := StartRedis(t, RedisDurable(), RedisPassword("s3cret"), RedisTLS(NewCA(t)))
	r.MustDo("SET", "k", "v")
	addr := r.Addr()
	r.Kill()
	if _, err := r.Do("PING"); err == nil {
		t.Fatal("a killed Redis answered")
	}
	r.Start()
	m := r.MustDo("GET", "k")
	if v, _ := m.ToString(); v != "v" || r.Addr() != addr {
		t.Errorf("found %q on %s, want the value kept on %s", v, r.Addr(), addr)
	}
}

func TestClusterIsWholeAgainAfterARestart(t *testing.T) {
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
