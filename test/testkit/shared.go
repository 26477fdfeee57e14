package testkit

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Environment variables with the ports of servers that the packages of a test run
// share. Without them, the tests of a package start and share their own.
const (
	envPostgres = "TEST_POSTGRES_PORT"
	envCluster  = "TEST_CLUSTER_PORTS"
)

// StartShared starts the servers that the packages of a test run share, and returns
// the environment variables for them.
func StartShared(l Lasting) []string {
	ports := func(list []int) string { return strings.Trim(fmt.Sprint(list), "[]") }
	return []string{envPostgres + "=" + ports(startPostgres(l)), envCluster + "=" + ports(startCluster(l))}
}

func startPostgres(l Lasting) []int { return []int{StartPostgres(l, PostgresOptions{}).Port} }

func startCluster(l Lasting) (ports []int) {
	for _, node := range StartRedisCluster(l).Nodes {
		ports = append(ports, node.port)
	}
	return ports
}

// shared starts a server for the tests of this process, unless the environment names one.
type shared struct {
	env   string
	start func(Lasting) []int

	mu    sync.Mutex
	ports []int // empty: not started
}

var (
	sharedPostgres = shared{env: envPostgres, start: startPostgres}
	sharedCluster  = shared{env: envCluster, start: startCluster}
)

func (s *shared) get(t testing.TB) []int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ports) > 0 {
		return s.ports
	}
	for _, port := range strings.Fields(os.Getenv(s.env)) {
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatalf("invalid %s: %v", s.env, err)
		}
		s.ports = append(s.ports, n)
	}
	if len(s.ports) == 0 {
		s.ports = s.start(Lasting{t})
	}
	return s.ports
}

// SharedPostgres returns a server for all tests. Each test creates its own database.
// TestMain must call Main, which stops the server.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	return &Postgres{Port: sharedPostgres.get(t)[0]}
}

// SharedRedisCluster returns an empty cluster that only this test uses until it ends:
// one test after the other uses it. TestMain must call Main, which stops the cluster.
func SharedRedisCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for _, port := range sharedCluster.get(t) {
		c.Nodes = append(c.Nodes, &Redis{t: t, port: port})
	}
	lock(t, fmt.Sprintf("telapi-test-cluster-%d", c.Nodes[0].port))
	for _, node := range c.Nodes {
		node.MustDo("FLUSHALL")
	}
	return c
}

// lock waits until no other test on this machine holds the lock, and keeps it until the
// test ends.
func lock(t testing.TB, name string) {
	t.Helper()
	for {
		l, err := net.Listen("unix", "@"+name) // abstract: ends with the process
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("wait for %s: %v", name, t.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
