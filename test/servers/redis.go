package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Redis is a real Redis server on a loopback port of its own.
type Redis struct {
	t        testing.TB
	port     int
	password string
	tls      *tls.Config
	args     []string
	proc     *process
}

// RedisOption changes how StartRedis starts the server.
type RedisOption func(*Redis)

// RedisPassword makes clients authenticate.
func RedisPassword(password string) RedisOption {
	return func(r *Redis) {
		r.password = password
		r.args = append(r.args, "--requirepass", password)
	}
}

// RedisTLS makes the server speak nothing but TLS, with a certificate of ca.
func RedisTLS(ca *CA) RedisOption {
	return func(r *Redis) {
		caFile, certFile, keyFile := ca.Files(r.t, r.t.TempDir(), "127.0.0.1", "localhost")
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.PEM())
		r.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		r.args = append(r.args, "--tls-ca-cert-file", caFile, "--tls-cert-file", certFile,
			"--tls-key-file", keyFile, "--tls-auth-clients", "no")
	}
}

// RedisDurable makes every answered write survive Kill.
func RedisDurable() RedisOption {
	return RedisArgs("--appendonly", "yes", "--appendfsync", "always")
}

// RedisArgs passes further settings on the server's command line.
func RedisArgs(args ...string) RedisOption {
	return func(r *Redis) { r.args = append(r.args, args...) }
}

// StartRedis starts a Redis that keeps nothing on disk unless asked to, and ends
// with the test.
func StartRedis(t testing.TB, opts ...RedisOption) *Redis {
	t.Helper()
	r := &Redis{t: t, port: FreePort(t), args: []string{"--save", "", "--loglevel", "warning"}}
	for _, opt := range opts {
		opt(r)
	}
	listen := []string{"--bind", "127.0.0.1", "--dir", t.TempDir(), "--port", strconv.Itoa(r.port)}
	if r.tls != nil {
		listen = append(listen, "--port", "0", "--tls-port", strconv.Itoa(r.port))
	}
	r.args = append(listen, r.args...)
	r.Start()
	return r
}

// Addr is the server's host and port.
func (r *Redis) Addr() string { return "127.0.0.1:" + strconv.Itoa(r.port) }

// Password is empty unless RedisPassword was given.
func (r *Redis) Password() string { return r.password }

// TLS trusts the server's certificate; nil unless RedisTLS was given.
func (r *Redis) TLS() *tls.Config { return r.tls }

// URL is the server's address as REDIS_URL has it.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", Host: r.Addr()}
	if r.tls != nil {
		u.Scheme = "rediss"
	}
	if r.password != "" {
		u.User = url.UserPassword("", r.password)
	}
	return u.String()
}

// Start starts a stopped or killed server again, on the same port and data.
func (r *Redis) Start() {
	r.t.Helper()
	p := launch(r.t, exec.Command(need(r.t, "redis-server", "redis-server"), r.args...))
	r.t.Cleanup(func() {
		_ = p.stop(os.Kill)
		if r.t.Failed() {
			r.t.Logf("Redis at %s said:\n%s", r.Addr(), p.out)
		}
	})
	r.proc = p
	p.await(r.t, func() error { _, err := r.Do("PING"); return err })
}

// Stop ends the server in an orderly way, Kill at once.
func (r *Redis) Stop() { r.t.Helper(); r.must(r.proc.stop(syscall.SIGTERM)) }

// Kill ends the server without a chance to say goodbye.
func (r *Redis) Kill() { r.t.Helper(); r.must(r.proc.stop(os.Kill)) }

// Freeze keeps connections open and answers nothing on them, like a host that
// hangs; Thaw ends that.
func (r *Redis) Freeze() { r.t.Helper(); r.must(r.proc.cmd.Process.Signal(syscall.SIGSTOP)) }

// Thaw lets a frozen server go on.
func (r *Redis) Thaw() { r.t.Helper(); r.must(r.proc.cmd.Process.Signal(syscall.SIGCONT)) }

func (r *Redis) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}

// Do sends one command on a connection of its own.
func (r *Redis) Do(args ...string) (rueidis.RedisMessage, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Password: r.password, TLSConfig: r.tls,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
	})
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return client.Do(ctx, client.B().Arbitrary(args...).Build()).ToMessage()
}

// MustDo is Do for commands that cannot fail.
func (r *Redis) MustDo(args ...string) rueidis.RedisMessage {
	r.t.Helper()
	m, err := r.Do(args...)
	if err != nil {
		r.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return m
}

const clusterSlots = 16384

// Cluster is a Redis Cluster of three masters, and of replicas where asked for.
type Cluster struct {
	t     testing.TB
	opts  []RedisOption
	Nodes []*Redis
}

// StartRedisCluster starts three nodes, shares the slots among them and waits
// until they agree. Options apply to every node.
func StartRedisCluster(t testing.TB, opts ...RedisOption) *Cluster {
	t.Helper()
	const masters = 3
	c := &Cluster{t: t, opts: opts}
	for i := range masters {
		first, last := i*clusterSlots/masters, (i+1)*clusterSlots/masters-1
		c.join(
			[]string{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)},
			[]string{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}, // only while it knows nobody
		)
	}
	c.AwaitOK()
	return c
}

// AddReplica starts a node that follows master and takes its place when that dies.
func (c *Cluster) AddReplica(master *Redis) *Redis {
	c.t.Helper()
	m := master.MustDo("CLUSTER", "MYID")
	id, _ := m.ToString()
	replica := c.join()
	c.AwaitOK()
	replica.MustDo("CLUSTER", "REPLICATE", id)
	replica.proc.await(c.t, func() error {
		m := replica.MustDo("INFO", "replication")
		if info, _ := m.ToString(); !strings.Contains(info, "master_link_status:up") {
			return fmt.Errorf("not in step with its master:\n%s", info)
		}
		return nil
	})
	return replica
}

// join starts a node, sets it up and introduces it to the first.
func (c *Cluster) join(setup ...[]string) *Redis {
	c.t.Helper()
	node := StartRedis(c.t, append(slices.Clone(c.opts), RedisArgs("--cluster-enabled", "yes",
		"--cluster-port", strconv.Itoa(FreePort(c.t)), "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"))...)
	c.Nodes = append(c.Nodes, node)
	for _, command := range setup {
		node.MustDo(command...)
	}
	if first := c.Nodes[0]; first != node {
		node.MustDo("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(first.port), first.busPort())
	}
	return node
}

// Addrs lists the nodes' addresses.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		addrs[i] = node.Addr()
	}
	return addrs
}

// URL names all nodes, as REDIS_URL has it.
func (c *Cluster) URL() string {
	u, _ := url.Parse(c.Nodes[0].URL())
	u.Host = strings.Join(c.Addrs(), ",")
	return u.String()
}

// AwaitOK waits until every node can reach all slots.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	for _, node := range c.Nodes {
		node.proc.await(c.t, func() error {
			m, err := node.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			info, err := m.ToString()
			known := fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))
			if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, known)) {
				err = fmt.Errorf("cluster is not ready:\n%s", info)
			}
			return err
		})
	}
}

func (r *Redis) busPort() string {
	return r.args[slices.Index(r.args, "--cluster-port")+1]
}
