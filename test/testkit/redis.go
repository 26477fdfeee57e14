package testkit

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
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

// Redis is a Redis server on a loopback port.
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

// RedisPassword makes the server require a password.
func RedisPassword(password string) RedisOption {
	return func(r *Redis) {
		r.password = password
		r.args = append(r.args, "--requirepass", password)
	}
}

// RedisTLS makes the server accept only TLS, with a certificate of ca.
func RedisTLS(ca *CA) RedisOption {
	return func(r *Redis) {
		caFile, certFile, keyFile := ca.Files(r.t, r.t.TempDir(), "127.0.0.1", "localhost")
		r.tls = ca.ClientTLS()
		r.args = append(r.args, "--tls-ca-cert-file", caFile, "--tls-cert-file", certFile,
			"--tls-key-file", keyFile, "--tls-auth-clients", "no")
	}
}

// RedisDurable makes acknowledged writes survive Kill.
func RedisDurable() RedisOption {
	return RedisArgs("--appendonly", "yes", "--appendfsync", "always")
}

// RedisArgs adds arguments to the server's command line.
func RedisArgs(args ...string) RedisOption {
	return func(r *Redis) { r.args = append(r.args, args...) }
}

// StartRedis starts a server that stops when the test ends. Without RedisDurable
// it stores nothing on disk.
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

// StartReplica starts a replica of a server. It returns when the server counts it.
func StartReplica(t testing.TB, master *Redis) *Redis {
	t.Helper()
	master.MustDo("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	replica := StartRedis(t)
	replica.MustDo("REPLICAOF", "127.0.0.1", strconv.Itoa(master.port))
	master.awaitReplica(replica)
	return replica
}

// awaitReplica waits until the server counts a replica: a WAIT before that takes until its
// timeout. The server lists replicas by port only, and the replica its master. Other servers may
// have used these ports, but not the ID of the data.
func (r *Redis) awaitReplica(replica *Redis) {
	r.t.Helper()
	replica.proc.await(r.t, func() error {
		master, own := r.replication(), replica.replication()
		online := fmt.Sprintf(",port=%d,state=online,", replica.port)
		if !strings.Contains(fmt.Sprint(master), online) || own["master_link_status"] != "up" || own["master_replid"] != master["master_replid"] {
			return fmt.Errorf("replica is not in sync: %v, server: %v", own, master)
		}
		return nil
	})
}

// replication returns the fields of INFO replication.
func (r *Redis) replication() map[string]string {
	r.t.Helper()
	reply := r.MustDo("INFO", "replication")
	text, _ := reply.ToString()
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// Addr returns the server's host and port.
func (r *Redis) Addr() string { return "127.0.0.1:" + strconv.Itoa(r.port) }

// Password returns the password of RedisPassword, or "".
func (r *Redis) Password() string { return r.password }

// TLS returns a configuration that trusts the server, or nil without RedisTLS.
func (r *Redis) TLS() *tls.Config { return r.tls }

// URL returns a value for REDIS_URL.
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

// Start restarts a stopped or killed server with the same port and data.
func (r *Redis) Start() {
	r.t.Helper()
	p := launch(r.t, exec.Command(need(r.t, "redis-server", "redis-server"), r.args...))
	r.t.Cleanup(func() {
		_ = p.stop(os.Kill)
		if r.t.Failed() {
			r.t.Logf("output of Redis at %s:\n%s", r.Addr(), p.out)
		}
	})
	r.proc = p
	p.await(r.t, func() error { _, err := r.Do("PING"); return err })
}

// Stop shuts the server down cleanly.
func (r *Redis) Stop() { r.t.Helper(); r.must(r.proc.stop(syscall.SIGTERM)) }

// Kill kills the server.
func (r *Redis) Kill() { r.t.Helper(); r.must(r.proc.stop(os.Kill)) }

// Freeze suspends the server: connections stay open, but get no replies. Thaw
// resumes it.
func (r *Redis) Freeze() { r.t.Helper(); r.must(r.proc.cmd.Process.Signal(syscall.SIGSTOP)) }

// Thaw resumes a frozen server.
func (r *Redis) Thaw() { r.t.Helper(); r.must(r.proc.cmd.Process.Signal(syscall.SIGCONT)) }

func (r *Redis) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}

// Do sends a command on a new connection.
func (r *Redis) Do(args ...string) (rueidis.RedisMessage, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Password: r.password, TLSConfig: r.tls,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
		Dialer: net.Dialer{Timeout: Timeout}, ConnWriteTimeout: Timeout,
	})
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	return client.Do(ctx, client.B().Arbitrary(args...).Build()).ToMessage()
}

// MustDo is Do, but an error fails the test.
func (r *Redis) MustDo(args ...string) rueidis.RedisMessage {
	r.t.Helper()
	m, err := r.Do(args...)
	if err != nil {
		r.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return m
}

const (
	clusterSlots = 16384
	masters      = 3
	// clusterNodeTimeout is when nodes report another one as failed. Nodes may get no CPU
	// time for a while on a busy machine. SetNodeTimeout shortens it for tests of failures.
	clusterNodeTimeout = time.Minute
)

// Cluster is a Redis Cluster of three masters and optional replicas.
type Cluster struct {
	t     testing.TB
	opts  []RedisOption
	Nodes []*Redis
}

// StartRedisCluster starts three masters and waits until the cluster is ready.
// Options apply to every node.
func StartRedisCluster(t testing.TB, opts ...RedisOption) *Cluster {
	t.Helper()
	c := &Cluster{t: t, opts: opts}
	for i := range masters {
		first, last := i*clusterSlots/masters, (i+1)*clusterSlots/masters-1
		c.join(
			[]string{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)},
			[]string{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}, // only possible before CLUSTER MEET
		)
	}
	c.AwaitOK()
	return c
}

// AddReplica starts a replica of master that replaces it if it fails.
func (c *Cluster) AddReplica(master *Redis) *Redis {
	c.t.Helper()
	m := master.MustDo("CLUSTER", "MYID")
	id, _ := m.ToString()
	replica := c.join()
	c.AwaitOK()
	replica.MustDo("CLUSTER", "REPLICATE", id)
	master.awaitReplica(replica)
	return replica
}

// Remove takes a master out of the cluster while it keeps running. Another master
// gets its slots; its data is lost.
func (c *Cluster) Remove(node *Redis) {
	c.t.Helper()
	i := slices.Index(c.Nodes, node)
	reply := node.MustDo("CLUSTER", "MYID")
	id, _ := reply.ToString()
	slots := []string{strconv.Itoa(i * clusterSlots / masters), strconv.Itoa((i+1)*clusterSlots/masters - 1)}
	for _, n := range c.Nodes {
		n.MustDo("CLUSTER", "DELSLOTSRANGE", slots[0], slots[1])
	}
	c.Nodes = slices.Delete(slices.Clone(c.Nodes), i, i+1)
	for _, n := range c.Nodes {
		n.MustDo("CLUSTER", "FORGET", id)
	}
	node.MustDo("FLUSHALL")
	node.MustDo("CLUSTER", "RESET", "HARD")
	c.Nodes[0].MustDo("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1])
	c.Nodes[0].MustDo("CLUSTER", "BUMPEPOCH")
	c.AwaitOK()
}

// SetNodeTimeout changes when the nodes report another one as failed, also after they
// were started again.
func (c *Cluster) SetNodeTimeout(timeout time.Duration) {
	c.t.Helper()
	for _, node := range c.Nodes {
		ms := strconv.FormatInt(timeout.Milliseconds(), 10)
		node.MustDo("CONFIG", "SET", "cluster-node-timeout", ms)
		RedisArgs("--cluster-node-timeout", ms)(node) // the last one counts
	}
}

// join starts a node, runs the setup commands and adds it to the cluster.
func (c *Cluster) join(setup ...[]string) *Redis {
	c.t.Helper()
	node := StartRedis(c.t, append(slices.Clone(c.opts), RedisArgs("--cluster-enabled", "yes",
		"--cluster-port", strconv.Itoa(FreePort(c.t)), "--cluster-node-timeout", strconv.FormatInt(clusterNodeTimeout.Milliseconds(), 10), "--repl-diskless-sync-delay", "0"))...)
	c.Nodes = append(c.Nodes, node)
	for _, command := range setup {
		node.MustDo(command...)
	}
	if first := c.Nodes[0]; first != node {
		node.MustDo("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(first.port), first.busPort())
	}
	return node
}

// Addrs returns the addresses of the nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		addrs[i] = node.Addr()
	}
	return addrs
}

// URL returns a value for REDIS_URL with all nodes.
func (c *Cluster) URL() string {
	u, _ := url.Parse(c.Nodes[0].URL())
	u.Host = strings.Join(c.Addrs(), ",")
	return u.String()
}

// AwaitOK waits until all nodes report cluster_state:ok.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	for _, node := range c.Nodes {
		node.proc.await(c.t, func() error {
			m, err := node.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			info, err := m.ToString()
			allNodes := fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))
			if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, allNodes)) {
				err = fmt.Errorf("cluster is not ready:\n%s", info)
			}
			return err
		})
	}
}

func (r *Redis) busPort() string {
	return r.args[slices.Index(r.args, "--cluster-port")+1]
}
