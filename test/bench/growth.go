package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

const (
	growthRounds    = 3
	senders         = 100    // concurrent senders of frames, whatever the number of sockets
	callbacksSent   = 20_000 // per number of channels
	activeChannels  = 10_000 // channels that get callbacks, at most
	instancesSecret = "JWT_SECRET=a secret that all instances of the benchmark share"
)

// growth measures how the cost of each unit of work changes while an installation
// grows. CPU time is steadier than rates, which also depend on other load.
func growth(at *site, s settings) {
	raiseFileLimit(10_000)
	fmt.Println("cost of each unit of work with more sockets, channels and instances")
	growSockets(at, s)
	for _, n := range []int{100, 10_000, 100_000} {
		t := at.startTelapi()
		at.measureCallbacks(s, []*telapi{t}, min(n, activeChannels), n).print(fmt.Sprintf("callbacks, %d channels", n), "callbacks")
		t.kill()
	}
	for _, on := range []*site{at, at.withCluster()} {
		for _, n := range []int{1, 2, 4} {
			on.growInstances(s, n)
		}
	}
}

// growSockets measures frames from browsers. On any number of sockets, the same number
// of frames is in flight, at most one on each: telapi sends several frames of a socket to
// Redis at once.
func growSockets(at *site, s settings) {
	// The sockets answer no pings while others are opened.
	t := at.startTelapi("SESSION_PING_INTERVAL=5m")
	defer t.kill()
	var sockets []pipeline
	for _, n := range []int{100, 1_000, 10_000} {
		added, _ := openSockets([]*telapi{t}, n-len(sockets), s.connections)
		sockets = append(sockets, added...)
		at.measureFrames(s, []*telapi{t}, sockets).print(fmt.Sprintf("frames, %d sockets", n), "frames")
	}
}

// measureFrames returns the medians of several rounds.
func (s *site) measureFrames(opts settings, instances []*telapi, sockets []pipeline) result {
	pipelines := make([]pipeline, min(senders, len(sockets)))
	for i := range pipelines {
		var own []pipeline
		for j := i; j < len(sockets); j += len(pipelines) {
			own = append(own, sockets[j])
		}
		pipelines[i] = rotate(own)
	}
	var results []result
	for range growthRounds + 1 {
		results = append(results, s.measureCPU(processes(instances), func() result { return run(pipelines, 1, opts.span) }))
	}
	return median(results[1:]) // the first round warms up
}

// rotate returns a pipeline that uses others in turn.
func rotate(others []pipeline) pipeline {
	next, sent := 0, make(chan pipeline, 1024)
	return pipeline{
		send: func() error {
			p := others[next%len(others)]
			next++
			sent <- p
			return p.send()
		},
		receive: func() error { return (<-sent).receive() },
	}
}

func processes(instances []*telapi) (list []*process) {
	for _, t := range instances {
		list = append(list, t.process)
	}
	return list
}

// measureCallbacks opens channels, and sends callbacks to the active ones, in turn to
// each instance. Each connection has its own channels.
func (s *site) measureCallbacks(opts settings, instances []*telapi, active, channels int) result {
	runtime := s.directRuntime()
	defer runtime.Close()
	s.openIdle(opts, channels-active)
	var addrs []string
	for _, t := range instances {
		addrs = append(addrs, t.addr)
	}
	prepare := func(count, active int) []source {
		return providers(runtime, opts.connections, max(active/opts.connections, 1), count, addrs...)
	}
	send := func(sources []source) result {
		return load(connectAll(nil, opts.connections, addrs...), http.StatusAccepted, sources)
	}
	send(prepare(callbacksSent/10, opts.connections)) // warms up
	sources := prepare(callbacksSent, active)
	return s.measureCPU(processes(instances), func() result { return send(sources) })
}

// openIdle opens channels that no runtime claims.
func (s *site) openIdle(opts settings, n int) {
	runtime := s.directRuntime()
	defer runtime.Close() // releases each claim a second time, which it would do some seconds later
	parallel(n, opts.connections, func(int) { check(openCalls(runtime, 1)[0].Close(context.Background())) })
}

// turns measures conversations on a Redis Cluster beside one Redis, and while more channels
// are open.
func turns(at *site, s settings) {
	fmt.Printf("conversations of %d turns, %d at a time, with more nodes and channels\n", turnsEach, s.connections)
	cluster := at.withCluster()
	one, three := at.startTalks(), cluster.startTalks()
	defer one.close()
	defer three.close()
	at.growTurns(one, cluster, three)
	opened := 0
	for _, n := range []int{100, 10_000, 100_000} {
		at.openIdle(s, n-opened)
		opened = n
		var results []result
		for range growthRounds {
			results = append(results, at.converse(one, s.connections, 4*s.connections, unpaced))
		}
		median(results).print(fmt.Sprintf("turns, %d channels", n), "turns")
	}
}

// growTurns measures turns on one Redis, and three times as many in a second on a cluster, so
// that each node has as much to do: a node that waits more needs more CPU time for each command.
// It compares Redis with the busiest node.
func (s *site) growTurns(one *telapiTalks, cluster *site, three *telapiTalks) {
	const rate, atATime, count = 150, 32, 96
	var results [2][]result
	var ratios []float64
	nodes, _ := cluster.storePIDs()
	for range growthRounds + 1 {
		alone := s.converse(one, atATime, count, rate)
		busy := make([]float64, len(nodes))
		for i, pid := range nodes {
			busy[i] = -cpuTime([]int{pid})
		}
		shared := cluster.converse(three, 3*atATime, 3*count, 3*rate)
		for i, pid := range nodes {
			busy[i] += cpuTime([]int{pid})
		}
		results[0], results[1] = append(results[0], alone), append(results[1], shared)
		share := slices.Max(busy) * 1e6 / float64(3*count*turnsEach)
		ratios = append(ratios, alone.costs[1]/share)
	}
	median(results[0][1:]).print("turns, "+s.kv, "turns") // the first round warms up
	median(results[1][1:]).print("turns, "+cluster.kv, "turns")
	fmt.Printf("  %-44s %8.2f (target: at least 2.50)\n", "CPU of Redis : busiest node of the cluster", middle(ratios[1:]))
}

// growInstances measures frames and callbacks with several instances.
func (s *site) growInstances(opts settings, n int) {
	instances := []*telapi{s.startTelapi(instancesSecret)}
	defer func() {
		for _, t := range instances {
			t.kill()
		}
	}()
	for len(instances) < n {
		instances = append(instances, instances[0].startAnother())
	}
	label := strings.Replace(fmt.Sprintf("%d instances, %s", n, s.kv), "1 instances", "1 instance", 1)
	sockets, conns := openSockets(instances, senders, opts.connections)
	s.measureFrames(opts, instances, sockets).print("frames, "+label, "frames")
	closeAll(conns)
	active := opts.connections * callsPerConnection
	s.measureCallbacks(opts, instances, active, active).print("callbacks, "+label, "callbacks")
}
