package campaign

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// outage is how long a fault lasts. It is longer than the time after which the
// service reports a request as failed.
const outage = 4 * time.Second

// fault is one row of the results.
type fault struct {
	name   string
	inject func(c *campaign, cycle int) // returns when the fault has ended
	// mayLose is set if the settings do not promise that acknowledged data survives.
	// Both sides must be notified of a loss.
	mayLose bool
	prepare func(c *campaign) // changes the settings before the fault; may be nil
	// repeated faults are left out in the small version: it has similar ones.
	repeated bool
}

// stage is an installation and the faults that are injected into it.
type stage struct {
	name, title string
	cluster     bool
	faults      []fault
}

const (
	singleTitle  = "PostgreSQL and one Redis with `appendfsync always`"
	clusterTitle = "PostgreSQL and a Redis Cluster of three masters with two replicas each, `appendfsync always`, `KV_MIN_REPLICAS=1`"
)

var stages = []stage{
	{name: "service", title: singleTitle, faults: []fault{
		{name: "none", inject: func(*campaign, int) {}},
		{name: "instance killed and restarted", inject: killInstance},
		{name: "runtime killed and restarted", inject: killRuntime},
		{name: "half of the requests to instances stall", inject: stalled(toInstances, harness.Requests)},
		{name: "half of the responses of instances stall", inject: stalled(toInstances, harness.Replies)},
		{name: "connections to instances reset", inject: resets(toInstances)},
		{name: "PostgreSQL restarts", inject: restartPostgres((*testkit.Postgres).Stop)},
		{name: "PostgreSQL crashes", inject: restartPostgres((*testkit.Postgres).Crash), repeated: true},
		{name: "rolling restart of both instances", inject: rollingRestart},
		{name: "all sockets reconnect at once", inject: storm},
	}},
	{name: "Redis", title: singleTitle, faults: []fault{
		{name: "Redis killed and restarted", inject: killRedis},
		{name: "Redis hangs", inject: hangRedis},
		{name: "half of the requests to Redis stall", inject: stalled(toRedis, harness.Requests)},
		{name: "half of the replies of Redis stall", inject: stalled(toRedis, harness.Replies)},
		{name: "connections to Redis 50 ms slower each way", inject: slowRedis},
		{name: "connections to Redis reset", inject: resets(toRedis)},
		{name: "**not promised:** machine crash with `appendfsync everysec`, Redis loses its last second", inject: loseLastSecond, mayLose: true, prepare: prepareLoss},
	}},
	{name: "cluster", title: clusterTitle, cluster: true, faults: []fault{
		{name: "none", inject: func(*campaign, int) {}, repeated: true},
		{name: "graceful failover (`CLUSTER FAILOVER`)", inject: failOver},
		{name: "master killed, replica takes over", inject: killMaster},
		{name: "master hangs, replica takes over, master comes back", inject: hangMaster},
		{name: "half of the requests to the cluster stall", inject: stalled(toRedis, harness.Requests), repeated: true},
		{name: "half of the replies of the cluster stall", inject: stalled(toRedis, harness.Replies), repeated: true},
		{name: "connections to the cluster reset", inject: resets(toRedis), repeated: true},
		{name: "instance killed and restarted", inject: killInstance, repeated: true},
		{name: "runtime killed and restarted", inject: killRuntime, repeated: true},
		{name: "rolling restart of both instances", inject: rollingRestart, repeated: true},
		{name: "**not promised:** `KV_MIN_REPLICAS=0`, master killed while its replicas are 1 s behind", inject: killMasterWithLag, mayLose: true, prepare: prepareLoss},
	}},
}

func killInstance(c *campaign, cycle int) {
	n := cycle % len(c.Instances)
	c.KillInstance(n)
	c.StartInstance(n)
}

func killRuntime(c *campaign, cycle int) {
	n := cycle % len(c.runtimes)
	c.runtimes[n].kill()
	c.startRuntime(c.ctx, n, c.ledger, c.provider)
}

func killRedis(c *campaign, _ int) {
	c.redis.Kill()
	c.redis.Start()
}

func hangRedis(c *campaign, _ int) {
	c.redis.Freeze()
	pause(c.ctx, outage)
	c.redis.Thaw()
}

// toRedis and toInstances return the proxies of connections that a fault affects.
func toRedis(c *campaign) []*harness.Proxy     { return c.redisProxies }
func toInstances(c *campaign) []*harness.Proxy { return c.instanceProxies }

// stalled holds the bytes of one direction, on half of the connections.
func stalled(proxies func(*campaign) []*harness.Proxy, d harness.Direction) func(*campaign, int) {
	return func(c *campaign, _ int) {
		resume := harness.Stall(proxies(c), d)
		pause(c.ctx, outage)
		resume()
	}
}

func slowRedis(c *campaign, _ int) {
	end := harness.Slow(c.redisProxies, 50*time.Millisecond)
	pause(c.ctx, outage)
	end()
}

// resets resets connections, half of them each time.
func resets(proxies func(*campaign) []*harness.Proxy) func(*campaign, int) {
	return func(c *campaign, _ int) {
		for range 10 {
			for _, p := range proxies(c) {
				p.Reset(0.5)
			}
			pause(c.ctx, 200*time.Millisecond)
		}
	}
}

// restartPostgres also cuts sockets: a handshake needs the database.
func restartPostgres(stop func(*testkit.Postgres)) func(*campaign, int) {
	return func(c *campaign, _ int) {
		stop(c.postgres)
		for i, b := range c.members() {
			if i%5 == 0 {
				b.cut()
			}
		}
		pause(c.ctx, time.Second)
		c.postgres.Start(c.t)
	}
}

func rollingRestart(c *campaign, _ int) {
	for n := range c.Instances {
		c.restart(n)
	}
}

// restart restarts an instance behind the balancer.
func (c *campaign) restart(n int) {
	c.t.Helper()
	_ = c.Instances[n].Cmd.Process.Signal(syscall.SIGTERM)
	c.Instances[n].WaitExit(c.t)
	c.StartInstance(n)
	c.AwaitHealthy(n)
	pause(c.ctx, 3*time.Second) // until HAProxy has checked it twice
}

// storm connects additional browsers, and then cuts all sockets at the same time.
// Each has one operation under way, and there is no other traffic. The additional
// sessions are deleted later.
func storm(c *campaign, _ int) {
	c.traffic.Store(false)
	c.join(c.size.storm - len(c.members()))
	for _, b := range c.members() {
		b.start(true)
		b.cut()
	}
}

// loseLastSecond restores the append-only file as it was a second before the crash.
func loseLastSecond(c *campaign, _ int) {
	c.redis.MustDo("CONFIG", "SET", "appendfsync", "everysec")
	files, err := filepath.Glob(filepath.Join(c.redisDir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		c.t.Fatalf("append-only files: %v, %v", files, err)
	}
	synced, err := os.Stat(files[0])
	testkit.Must(c.t, err)
	deliver := c.delayDelivery()
	pause(c.ctx, time.Second)
	c.redis.Kill()
	deliver()
	testkit.Must(c.t, os.Truncate(files[0], synced.Size()))
	c.redis.Start()
}

// failovers of a master to a replica. disturb makes one of its replicas take over, and
// repair restores the master as a replica.
func failovers(disturb func(c *campaign, master, replica int), repair func(master *testkit.Redis)) func(*campaign, int) {
	return func(c *campaign, cycle int) {
		master, replicas := c.shard(cycle)
		disturb(c, master, replicas[0])
		c.awaitMaster(replicas)
		repair(c.cluster.Nodes[master])
		c.awaitReplicas()
	}
}

var (
	failOver = failovers(func(c *campaign, _, replica int) { c.cluster.Nodes[replica].MustDo("CLUSTER", "FAILOVER") }, func(*testkit.Redis) {})

	killMaster = failovers(func(c *campaign, master, _ int) { c.cluster.Nodes[master].Kill() }, (*testkit.Redis).Start)

	hangMaster = failovers(func(c *campaign, master, _ int) { c.cluster.Nodes[master].Freeze() }, (*testkit.Redis).Thaw)

	killMasterWithLag = failovers(func(c *campaign, master, _ int) {
		deliver := c.delayDelivery()
		discard := harness.StallReplication([]*harness.Proxy{c.redisProxies[master]})
		pause(c.ctx, time.Second)
		c.cluster.Nodes[master].Kill()
		discard()
		deliver()
	}, (*testkit.Redis).Start)
)

// prepareLoss restarts instances and runtimes. Acknowledgements don't wait for
// replicas, and work items whose callback is lost time out soon.
func prepareLoss(c *campaign) {
	c.Env["KV_MIN_REPLICAS"] = "0"
	c.ttl = 5 * time.Second
	for n := range c.Instances {
		killInstance(c, n)
		killRuntime(c, n)
		c.AwaitHealthy(n)
	}
	c.probe(c.members())
}

// delayDelivery makes acknowledged data wait in the store: a third of the browsers
// are away, a runtime is suspended and the provider is slow.
func (c *campaign) delayDelivery() (end func()) {
	for i, b := range c.members() {
		if i%3 == 0 {
			b.stayAway(2 * time.Second)
		}
	}
	c.provider.maxDelay.Store(int64(2 * time.Second))
	suspended := c.runtimes[0].cmd.Process
	_ = suspended.Signal(syscall.SIGSTOP)
	return func() {
		_ = suspended.Signal(syscall.SIGCONT)
		c.provider.maxDelay.Store(int64(usualDelay))
	}
}

// replication returns the section replication of a node's INFO.
func (s *installation) replication(node int) string {
	m, err := s.cluster.Nodes[node].Do("INFO", "replication")
	if err != nil {
		return ""
	}
	info, _ := m.ToString()
	return info
}

// shard returns a master of the cluster and its replicas. It waits until all of them are in sync.
func (s *installation) shard(cycle int) (master int, replicas []int) {
	s.t.Helper()
	s.awaitReplicas()
	var current []int
	for n := range s.cluster.Nodes {
		if strings.Contains(s.replication(n), "role:master") {
			current = append(current, n)
		}
	}
	master = current[cycle%len(current)]
	if replicas = s.replicasOf(master); len(replicas) != s.size.replicas {
		s.t.Fatalf("node %d has %d replicas", master, len(replicas))
	}
	return master, replicas
}

// awaitMaster waits until one of the nodes is a master and the others follow it: a former master
// that is back must not get their confirmation.
func (s *installation) awaitMaster(nodes []int) {
	s.t.Helper()
	testkit.Until(s.t, fmt.Sprintf("one of the nodes %v is the master of the others", nodes), func() bool {
		master := slices.IndexFunc(nodes, func(n int) bool { return strings.Contains(s.replication(n), "role:master") })
		return master >= 0 && len(s.replicasOf(nodes[master])) >= len(nodes)-1
	})
}

// replicasOf returns the nodes that follow a master.
func (s *installation) replicasOf(master int) (replicas []int) {
	_, port, _ := net.SplitHostPort(s.redisProxies[master].Addr())
	for n := range s.cluster.Nodes {
		if strings.Contains(s.replication(n), "master_port:"+port+"\r") {
			replicas = append(replicas, n)
		}
	}
	return replicas
}

// awaitReplicas waits until all replicas are in sync.
func (s *installation) awaitReplicas() {
	s.t.Helper()
	testkit.Until(s.t, "all replicas are in sync", func() bool {
		inSync := 0
		for n := range s.cluster.Nodes {
			if strings.Contains(s.replication(n), "master_link_status:up") {
				inSync++
			}
		}
		return inSync == masters*s.size.replicas
	})
}
