package campaign

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// installation is a site with two runtime processes, PostgreSQL and Redis. Connections to
// instances, PostgreSQL and Redis go through proxies.
type installation struct {
	*harness.Site
	t    testing.TB
	size size

	redis        *testkit.Redis   // nil on a cluster
	cluster      *testkit.Cluster // nil on a single Redis
	redisDir     string           // data of redis
	redisProxies []*harness.Proxy // in the order of the cluster's nodes
	postgres     *testkit.Postgres

	instanceProxies []*harness.Proxy
	runtimes        [2]*runtimeProcess
	ttl             time.Duration // of work items

	tls    *tls.Config
	client *http.Client
}

// install starts the servers and the instances, but no runtimes.
func install(t testing.TB, size size, cluster bool, program harness.Program) *installation {
	t.Helper()
	s := &installation{t: t, size: size, ttl: time.Hour}
	s.postgres = testkit.StartPostgres(t, testkit.PostgresOptions{})
	database, _ := url.Parse(s.postgres.NewDatabase(t))
	database.Host = harness.StartProxy(t, database.Host).Addr()
	env := harness.Env{
		"DATABASE_URL": database.String(), "REDIS_URL": s.startRedis(cluster), "SESSION_PING_INTERVAL": size.ping.String(),
		"SESSION_RECONNECT_JITTER": "1s", "DRAIN_DELAY": "3s", "LOG_FORMAT": "json",
	}
	if cluster {
		env["KV_MIN_REPLICAS"] = "1"
	}
	s.Site = harness.StartSite(t, harness.SiteOptions{Balancer: harness.HAProxy, Env: env, Program: program, Forward: func(address string) string {
		p := harness.StartProxy(t, address)
		s.instanceProxies = append(s.instanceProxies, p)
		return p.Addr()
	}})
	s.tls = s.TLS()
	s.tls.ClientSessionCache = tls.NewLRUClientSessionCache(1024)
	transport := &http.Transport{TLSClientConfig: s.tls, MaxIdleConnsPerHost: 64}
	s.client = &http.Client{Transport: transport, Timeout: 15 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	return s
}

// masters is the number of shards of a cluster.
const masters = 3

// startRedis starts Redis with an append-only file and returns the URL of its proxies.
func (s *installation) startRedis(cluster bool) string {
	s.t.Helper()
	options := []testkit.RedisOption{testkit.RedisDurable(), testkit.RedisArgs("--auto-aof-rewrite-percentage", "0")}
	if !cluster {
		s.redisDir = s.t.TempDir()
		s.redis = testkit.StartRedis(s.t, append(options, testkit.RedisArgs("--dir", s.redisDir))...)
		s.redisProxies = []*harness.Proxy{harness.StartProxy(s.t, s.redis.Addr())}
		return "redis://" + s.redisProxies[0].Addr()
	}
	// Each node announces its proxy, so that clients and replicas connect to it.
	announce := func(r *testkit.Redis) {
		p := harness.StartProxy(s.t, r.Addr())
		_, port, _ := net.SplitHostPort(p.Addr())
		s.redisProxies = append(s.redisProxies, p)
		testkit.RedisArgs("--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port, "--cluster-allow-replica-migration", "no")(r)
	}
	s.cluster = testkit.StartRedisCluster(s.t, append(options, announce)...)
	for _, master := range slices.Repeat(s.cluster.Nodes[:masters], s.size.replicas) {
		s.cluster.AddReplica(master)
	}
	s.cluster.SetNodeTimeout(2 * time.Second)
	var hosts []string
	for _, p := range s.redisProxies {
		hosts = append(hosts, p.Addr())
	}
	return "redis://" + strings.Join(hosts, ",")
}

// request sends a request with the API key.
func (s *installation) request(method, path, body string) (*http.Response, error) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	testkit.Must(s.t, err)
	req.Header.Set("X-API-Key", s.Key)
	req.Header.Set("Content-Type", "application/json")
	return s.client.Do(req)
}

// issue creates a session. It retries until an instance is available.
func (s *installation) issue() (id, token string) {
	s.t.Helper()
	testkit.Until(s.t, "a session is created", func() bool {
		resp, err := s.request(http.MethodPost, "/api/v1/sessions/token", fmt.Sprintf(`{"mode":"chat","endpointId":%q}`, s.Endpoint))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var v struct{ SessionID, Token string }
		if resp.StatusCode != http.StatusCreated || json.NewDecoder(resp.Body).Decode(&v) != nil {
			return false
		}
		id, token = v.SessionID, v.Token
		return true
	})
	return id, token
}

// delete deletes a session.
func (s *installation) delete(session string) {
	s.t.Helper()
	testkit.Until(s.t, "a session is deleted", func() bool {
		resp, err := s.request(http.MethodDelete, "/api/v1/sessions/"+session, "")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode < http.StatusInternalServerError
	})
}

// runtimeProcess is a runtime in a separate process.
type runtimeProcess struct {
	cmd  *exec.Cmd
	done sync.WaitGroup // the ledger has all reports
}

// startRuntime starts a runtime process.
func (s *installation) startRuntime(ctx context.Context, n int, l *ledger, p *provider) {
	s.t.Helper()
	options, err := json.Marshal(runtimeOptions{Name: fmt.Sprintf("runtime-%d", n), URL: s.URL, Key: s.Key, CA: s.CA(), TTL: s.ttl})
	testkit.Must(s.t, err)
	r := &runtimeProcess{cmd: exec.Command(os.Args[0])}
	r.cmd.Env = append(os.Environ(), envRuntime+"="+string(options))
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.Stderr = os.Stderr
	reports, stdout, err := os.Pipe()
	testkit.Must(s.t, err)
	r.cmd.Stdout = stdout
	testkit.Must(s.t, r.cmd.Start())
	_ = stdout.Close()
	r.done.Go(func() {
		defer reports.Close()
		follow(ctx, reports, l, p)
		_ = r.cmd.Wait()
	})
	s.runtimes[n] = r
	s.t.Cleanup(r.kill)
}

// kill kills the process and waits until its reports are read.
func (r *runtimeProcess) kill() {
	_ = r.cmd.Process.Kill()
	r.done.Wait()
}
