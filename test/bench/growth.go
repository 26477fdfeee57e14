package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"

	"telapi/internal/calls"
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
func growth(at *site, s settings) error {
	if at.redisURL == "" {
		return fmt.Errorf("redis-server is not installed")
	}
	if err := raiseFileLimit(10_000); err != nil {
		return err
	}
	fmt.Println("cost of each unit of work with more sockets, channels, instances and rows")
	for _, grow := range []func(*site, settings) error{growSockets, growChannels, growInstances, growTables} {
		if err := grow(at, s); err != nil {
			return err
		}
	}
	return nil
}

// printRow prints the label of a row, runs the measurement, and prints its result.
func printRow(label, unit string, measure func() (result, error)) error {
	fmt.Printf("  %-44s", label)
	r, err := measure()
	if err != nil {
		fmt.Println()
		return fmt.Errorf("%s: %w", label, err)
	}
	fmt.Printf(" %7.0f %s/s   CPU µs each: server %.0f, Redis %.0f, bench %.0f", r.perSecond, unit, r.costs[0], r.costs[1], r.costs[2])
	if r.errors > 0 {
		fmt.Printf("   errors %d", r.errors)
	}
	fmt.Println()
	return nil
}

// growSockets measures frames from browsers. On any number of sockets, the same number
// of frames is in flight, at most one on each: telapi sends several frames of a socket to
// Redis at once.
func growSockets(at *site, s settings) error {
	// The sockets answer no pings while others are opened.
	t, err := at.startTelapi("SESSION_PING_INTERVAL=5m")
	if err != nil {
		return err
	}
	defer t.kill()
	var sockets []pipeline
	for _, n := range []int{100, 1_000, 10_000} {
		err := printRow(fmt.Sprintf("frames, %d sockets", n), "frames", func() (result, error) {
			added, _, err := openSockets([]*telapi{t}, n-len(sockets), s.connections)
			if err != nil {
				return result{}, err
			}
			sockets = append(sockets, added...)
			return at.measureFrames(s, []*telapi{t}, sockets)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// openSockets opens sockets, in turn on each instance.
func openSockets(instances []*telapi, n, workers int) ([]pipeline, []*websocket.Conn, error) {
	sockets, conns := make([]pipeline, n), make([]*websocket.Conn, n)
	_, err := parallel(n, workers, func(i int) error {
		token, conn, err := instances[i%len(instances)].openSession()
		sockets[i], conns[i] = chatPipeline(conn, token.SessionID), conn
		return err
	})
	return sockets, conns, err
}

// measureFrames returns the medians of several rounds.
func (s *site) measureFrames(opts settings, instances []*telapi, sockets []pipeline) (result, error) {
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
		r, err := s.measureCPU(processes(instances), func() (result, error) { return run(pipelines, 1, opts.span) })
		if err != nil {
			return result{}, err
		}
		results = append(results, r)
	}
	return median(results[1:]), nil // the first round warms up
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

// growChannels measures callbacks to a part of the channels in Redis.
func growChannels(at *site, s settings) error {
	for _, n := range []int{100, 10_000, 100_000} {
		t, err := at.startTelapi()
		if err != nil {
			return err
		}
		err = printRow(fmt.Sprintf("callbacks, %d channels", n), "callbacks", func() (result, error) {
			return at.measureCallbacks(s, []*telapi{t}, callbacksSent, min(n, activeChannels), n)
		})
		t.kill()
		if err != nil {
			return err
		}
	}
	return nil
}

// measureCallbacks opens channels, and sends callbacks to the active ones, in turn to
// each instance. Each connection has its own channels.
func (s *site) measureCallbacks(opts settings, instances []*telapi, count, active, channels int) (r result, err error) {
	if err := instances[0].run(nil, "limits", "set", "--tier", "webhook", "--max", "1000000000", "--window", "24h"); err != nil {
		return r, err
	}
	runtime, err := calls.New(calls.Options{Store: storeOptions(s.redisURL), Name: "bench"})
	if err != nil {
		return r, err
	}
	defer runtime.Close()
	if _, err := parallel(channels-active, opts.connections, func(int) error {
		idle, err := openCalls(runtime, 1)
		if err != nil {
			return err
		}
		return idle[0].Close(context.Background())
	}); err != nil {
		return r, err
	}
	prepare := func(count, active int) ([]source, error) {
		sources := make([]source, opts.connections)
		_, err := parallel(opts.connections, opts.connections, func(i int) error {
			calls, err := openCalls(runtime, max(active/opts.connections, 1))
			if err == nil {
				sources[i], err = provider(calls, instances[i%len(instances)].addr, count/opts.connections)
			}
			return err
		})
		return sources, err
	}
	send := func(sources []source) (result, error) {
		return load(func(i int) string { return instances[i%len(instances)].addr }, http.StatusAccepted, sources)
	}
	warmUp, err := prepare(count/10, opts.connections)
	if err == nil {
		_, err = send(warmUp)
	}
	if err != nil {
		return r, err
	}
	sources, err := prepare(count, active)
	if err != nil {
		return r, err
	}
	return s.measureCPU(processes(instances), func() (result, error) { return send(sources) })
}

// growInstances measures frames and callbacks with several instances, on one Redis and
// on a cluster.
func growInstances(at *site, s settings) error {
	cluster, err := at.startCluster()
	if err != nil {
		return err
	}
	for _, on := range []*site{at, cluster} {
		for _, n := range []int{1, 2, 4} {
			if err := on.measureInstances(s, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *site) measureInstances(opts settings, n int) error {
	first, err := s.startTelapi(instancesSecret)
	if err != nil {
		return err
	}
	instances := []*telapi{first}
	defer func() {
		for _, t := range instances {
			t.kill()
		}
	}()
	for len(instances) < n {
		next, err := first.startAnother(s.dir)
		if err != nil {
			return err
		}
		instances = append(instances, next)
	}
	label := strings.Replace(fmt.Sprintf("%d instances, %s", n, s.kv), "1 instances", "1 instance", 1)
	if err := printRow("frames, "+label, "frames", func() (result, error) {
		sockets, conns, err := openSockets(instances, senders, opts.connections)
		defer closeAll(conns)
		if err != nil {
			return result{}, err
		}
		return s.measureFrames(opts, instances, sockets)
	}); err != nil {
		return err
	}
	return printRow("callbacks, "+label, "callbacks", func() (result, error) {
		active := opts.connections * callsPerConnection
		return s.measureCallbacks(opts, instances, callbacksSent, active, active)
	})
}
