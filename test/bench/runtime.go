package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"telapi/callruntime"
	"telapi/internal/calls"
)

const (
	arrivalsPerSecond = 400 // a moderate load: with more, latency depends on throughput
	arrivalRounds     = 5   // times as many as in other scenarios, because p99 varies most
	entriesPerBody    = 3   // of botBody
	claimSamples      = 60
)

// call is a channel of either kind of runtime.
type call struct {
	id      string
	await   func() (path, token string, err error)
	receive func() (position string, err error)
	commit  func(position string) error
}

// connectRuntime connects a runtime to the service.
func (t *telapi) connectRuntime() (*callruntime.Runtime, error) {
	return callruntime.New(callruntime.Options{URL: "http://" + t.addr, Key: t.key, Name: "bench"})
}

// callOf returns a channel that the service serves.
func callOf(c *callruntime.Channel) call {
	ctx := context.Background()
	return call{c.ID, func() (string, string, error) {
		item, err := c.Await(ctx, callruntime.AwaitOptions{})
		if err != nil {
			return "", "", err
		}
		u, err := url.Parse(item.URL)
		return u.RequestURI(), item.Token, err
	}, func() (string, error) {
		d, err := c.Receive(ctx)
		return d.Position, err
	}, func(position string) error { return c.Commit(ctx, position) }}
}

// directCallOf returns a channel that bench reads from the store.
func directCallOf(c *calls.Channel) call {
	ctx := context.Background()
	return call{c.ID, func() (string, string, error) {
		item, err := c.Await(ctx, calls.AwaitOptions{})
		return item.Path, item.Token, err
	}, func() (string, error) {
		d, err := c.Receive(ctx)
		return d.Position, err
	}, func(position string) error { return c.Commit(ctx, position) }}
}

// arrivals compares how long a callback takes to a runtime on /ws/runtime and to one that
// reads the store itself.
func arrivals(at *site, s settings) error {
	if at.redisURL == "" {
		return fmt.Errorf("redis-server is not installed")
	}
	t, err := at.startTelapi()
	if err != nil {
		return err
	}
	defer t.kill()
	if err := t.run(nil, "limits", "set", "--tier", "webhook", "--max", "1000000000", "--window", "24h"); err != nil {
		return err
	}
	direct, err := calls.New(calls.Options{Store: storeOptions(at.redisURL), Name: "direct"})
	if err != nil {
		return err
	}
	defer direct.Close()
	runtime, err := t.connectRuntime()
	if err != nil {
		return err
	}
	defer runtime.Close()
	served, read := make([]call, s.connections), make([]call, s.connections)
	if _, err := parallel(s.connections, s.connections, func(i int) error {
		c, err := runtime.Open(context.Background(), callruntime.OpenOptions{ChannelID: uuid.NewString(), EndpointID: t.endpoint, Profile: []byte(botProfile)})
		if err != nil {
			return err
		}
		d, err := openCalls(direct, 1)
		if err == nil {
			served[i], read[i] = callOf(c), directCallOf(d[0])
		}
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("time from the POST of a callback to Receive; %d channels, %d callbacks/s\n", s.connections, arrivalsPerSecond)
	each := max(1, int(arrivalsPerSecond*s.span.Seconds()/float64(s.connections)))
	round := func(list []call) func() ([]time.Duration, error) {
		return func() ([]time.Duration, error) { return measureArrivals(t.addr, list, each) }
	}
	names, sides := []string{"/ws/runtime", "from the store"}, []func() ([]time.Duration, error){round(served), round(read)}
	var took [2][2][]float64 // by side and quantile, of each round
	for i := range arrivalRounds*s.rounds + 1 {
		for j := range sides {
			side := (i + j) % 2
			latencies, err := sides[side]()
			if err != nil {
				return err
			}
			slices.Sort(latencies)
			for q, percent := range []int{50, 99} {
				if i > 0 { // the first round warms up
					took[side][q] = append(took[side][q], latencies[len(latencies)*percent/100].Seconds())
				}
			}
		}
	}
	var ratios [2][]float64
	for q := range ratios {
		for i, seconds := range took[0][q] {
			ratios[q] = append(ratios[q], seconds/took[1][q][i])
		}
	}
	for side, name := range names {
		fmt.Printf("  %-18s p50 %6.2f ms   p99 %6.2f ms\n", name, 1e3*middle(took[side][0]), 1e3*middle(took[side][1]))
	}
	fmt.Printf("  %-18s p50 %6.2f      p99 %6.2f (target: p99 at most 1.30)\n", "ratio", middle(ratios[0]), middle(ratios[1]))
	return nil
}

// middle returns the median.
func middle(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// measureArrivals sends callbacks to calls at a fixed rate, one at a time to each, and
// returns the time from each request to its first entry.
func measureArrivals(addr string, list []call, each int) (latencies []time.Duration, err error) {
	var group errgroup.Group
	sources, took := make([]source, len(list)), make([][]time.Duration, len(list))
	interval, start := time.Duration(len(list))*time.Second/arrivalsPerSecond, time.Now()
	for i, c := range list {
		requests, sent := make(chan []byte), make(chan time.Time, 1)
		phase := interval * time.Duration(i) / time.Duration(len(list))
		sources[i] = func() []byte {
			request := <-requests
			sent <- time.Now()
			return request
		}
		group.Go(func() error {
			defer close(requests)
			for n := range each {
				path, token, err := c.await()
				if err != nil {
					return err
				}
				body := botBody(c.id)
				time.Sleep(time.Until(start.Add(interval*time.Duration(n) + phase)))
				requests <- fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\ntoken: %s\r\nContent-Length: %d\r\n\r\n%s",
					path, addr, token, len(body), body)
				var position string
				for entry := range entriesPerBody {
					if position, err = c.receive(); err != nil {
						return err
					}
					if entry == 0 {
						took[i] = append(took[i], time.Since(<-sent))
					}
				}
				if err := c.commit(position); err != nil {
					return err
				}
			}
			return nil
		})
	}
	r, err := load(to(addr), http.StatusAccepted, sources)
	if err == nil && r.errors > 0 {
		err = fmt.Errorf("%d callbacks failed", r.errors)
	}
	if err == nil {
		err = group.Wait()
	}
	return slices.Concat(took...), err
}
