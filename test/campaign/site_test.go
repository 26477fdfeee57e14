package campaign

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
)

// site is a complete installation: two instances behind HAProxy, two runtimes,
// PostgreSQL and Redis. Connections to instances, PostgreSQL and Redis go through
// proxies.
type site struct {
	t    testing.TB
	size size
	env  boot.Env

	redis        *servers.Redis   // nil on a cluster
	cluster      *servers.Cluster // nil on a single Redis
	redisDir     string           // data of redis
	redisProxies []*proxy         // in the order of the cluster's nodes
	postgres     *servers.Postgres

	ports           [2]int
	instances       [2]*boot.Process
	instanceProxies []*proxy
	runtimes        [2]*runtimeProcess
	ttl             time.Duration // of work items

	url           string // of HAProxy
	tls           *tls.Config
	client        *http.Client
	key, endpoint string
}

// newSite starts the servers and the instances, but no runtimes.
func newSite(t testing.TB, size size, cluster bool, settings boot.Env) *site {
	t.Helper()
	s := &site{t: t, size: size, ttl: time.Hour}
	s.postgres = servers.StartPostgres(t, servers.PostgresOptions{})
	database, _ := url.Parse(s.postgres.NewDatabase(t))
	database.Host = startProxy(t, database.Host).addr()
	s.env = boot.Merge(boot.Env{
		"JWT_SECRET": boot.Secret, "DATABASE_URL": database.String(), "REDIS_URL": s.startRedis(cluster), "TRUSTED_PROXIES": "127.0.0.1",
		"SESSION_PING_INTERVAL": size.ping.String(), "SESSION_RECONNECT_JITTER": "1s", "DRAIN_DELAY": "3s", "LOG_LEVEL": "warn", "LOG_FORMAT": "json",
	}, settings)
	for n := range s.instances {
		s.ports[n] = servers.FreePort(t)
		s.instanceProxies = append(s.instanceProxies, startProxy(t, "127.0.0.1:"+strconv.Itoa(s.ports[n])))
		s.startInstance(n)
	}
	for n := range s.instances {
		s.awaitHealthy(n)
	}
	s.seed()
	s.startHAProxy()
	return s
}

// startRedis starts Redis with an append-only file and returns the URL of its
// proxies. A cluster has three masters, each with a replica.
func (s *site) startRedis(cluster bool) string {
	s.t.Helper()
	options := []servers.RedisOption{servers.RedisDurable(), servers.RedisArgs("--auto-aof-rewrite-percentage", "0")}
	if !cluster {
		s.redisDir = s.t.TempDir()
		s.redis = servers.StartRedis(s.t, append(options, servers.RedisArgs("--dir", s.redisDir))...)
		s.redisProxies = []*proxy{startProxy(s.t, s.redis.Addr())}
		return "redis://" + s.redisProxies[0].addr()
	}
	// Each node announces its proxy, so that clients and replicas connect to it.
	announce := func(r *servers.Redis) {
		p := startProxy(s.t, r.Addr())
		_, port, _ := net.SplitHostPort(p.addr())
		s.redisProxies = append(s.redisProxies, p)
		servers.RedisArgs("--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port)(r)
	}
	s.cluster = servers.StartRedisCluster(s.t, append(options, announce)...)
	for _, master := range s.cluster.Nodes[:3] {
		s.cluster.AddReplica(master)
	}
	for _, node := range s.cluster.Nodes {
		node.MustDo("CONFIG", "SET", "cluster-node-timeout", "2000") // no failover because the machine is busy
	}
	var hosts []string
	for _, p := range s.redisProxies {
		hosts = append(hosts, p.addr())
	}
	return "redis://" + strings.Join(hosts, ",")
}

func (s *site) startInstance(n int) {
	s.t.Helper()
	s.instances[n] = boot.StartProcess(s.t, boot.Merge(s.env, boot.Env{"TELAPI_PORT": strconv.Itoa(s.ports[n]), "DATA_DIR": s.t.TempDir()}), "serve")
}

// seed creates an endpoint and an API key, and raises all limits.
func (s *site) seed() {
	s.t.Helper()
	team := s.telapi("team", "create", "campaign")["id"]
	s.endpoint = s.telapi("endpoint", "create", "--team", team, "--name", "front door", "--mode", "chat")["id"]
	s.key = s.telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN")["key"]
	s.telapi("quota", "set", team, "10000000")
	for _, tier := range []string{"api", "auth", "webhook"} {
		s.telapi("limits", "set", "--tier", tier, "--max", "100000000", "--window", "1m")
	}
}

// telapi runs a CLI command and returns its JSON output.
func (s *site) telapi(args ...string) map[string]string {
	s.t.Helper()
	path, err := boot.Binary()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), path, append(args, "--json")...)
	cmd.Env = boot.Environ(boot.Merge(s.env, boot.Env{"DATA_DIR": s.t.TempDir()}))
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("telapi %v: %v\n%s", args, err, &problem)
	}
	var values map[string]any
	_ = json.Unmarshal(out, &values)
	texts := map[string]string{}
	for name, value := range values {
		texts[name] = fmt.Sprint(value)
	}
	return texts
}

// startHAProxy starts the balancer with the configuration in deploy.
func (s *site) startHAProxy() {
	s.t.Helper()
	ca := servers.NewCA(s.t)
	certificate, key := ca.Issue(s.t, "127.0.0.1", "localhost")
	file := filepath.Join(s.t.TempDir(), "both.pem")
	if err := os.WriteFile(file, append(certificate, key...), 0o600); err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	s.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(1024)}
	transport := &http.Transport{TLSClientConfig: s.tls, MaxIdleConnsPerHost: 64}
	s.client = &http.Client{Transport: transport, Timeout: 15 * time.Second}
	s.t.Cleanup(transport.CloseIdleConnections)
	port := strconv.Itoa(servers.FreePort(s.t))
	s.url = "https://127.0.0.1:" + port
	servers.StartHAProxy(s.t, "../../deploy/haproxy/haproxy.cfg", []string{
		"HAPROXY_BIND=127.0.0.1:" + port, "HAPROXY_CERT=" + file,
		"TELAPI_1=" + s.instanceProxies[0].addr(), "TELAPI_2=" + s.instanceProxies[1].addr(),
	}, func() error {
		resp, err := s.client.Get(s.url + "/health")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
}

func (s *site) healthy(n int) bool {
	resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(s.ports[n]) + "/health")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (s *site) awaitHealthy(n int) {
	s.t.Helper()
	poll.Until(s.t, fmt.Sprintf("instance %d is healthy", n), func() bool { return s.healthy(n) })
}

// issue creates a session. It retries until an instance is available.
func (s *site) issue() (id, token string) {
	s.t.Helper()
	poll.Until(s.t, "a session is created", func() bool {
		body := fmt.Sprintf(`{"mode":"chat","endpointId":%q}`, s.endpoint)
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/api/v1/sessions/token", strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("X-API-Key", s.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := s.client.Do(req)
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
func (s *site) delete(session string) {
	s.t.Helper()
	poll.Until(s.t, "a session is deleted", func() bool {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodDelete, s.url+"/api/v1/sessions/"+session, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("X-API-Key", s.key)
		resp, err := s.client.Do(req)
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
func (s *site) startRuntime(ctx context.Context, n int, l *ledger, p *provider) {
	s.t.Helper()
	minReplicas, _ := strconv.Atoi(s.env["KV_MIN_REPLICAS"])
	options, err := json.Marshal(runtimeOptions{
		Name: fmt.Sprintf("runtime-%d", n), RedisURL: s.env["REDIS_URL"], Lease: s.size.lease, TTL: s.ttl, MinReplicas: minReplicas,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	r := &runtimeProcess{cmd: exec.Command(os.Args[0])}
	r.cmd.Env = append(os.Environ(), envRuntime+"="+string(options))
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.Stderr = os.Stderr
	reports, stdout, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	r.cmd.Stdout = stdout
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
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
