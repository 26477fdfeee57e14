package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

const (
	arrivalsPerSecond = 400 // a moderate load: with more, latency depends on throughput
	arrivalRounds     = 5   // times as many as in other scenarios, because p99 varies most
	entriesPerBody    = 3   // of botBody
)

// call is a channel of either kind of runtime.
type call struct {
	id      string
	await   func() (path, token string)
	receive func() (position string)
	commit  func(position string)
}

// callOf returns a channel that the service serves.
func callOf(c *callruntime.Channel) call {
	ctx := context.Background()
	return call{
		id: c.ID,
		await: func() (string, string) {
			item := must(c.Await(ctx, wire.Await{}))
			return must(url.Parse(item.URL)).RequestURI(), item.Token
		},
		receive: func() string { return must(c.Receive(ctx)).Position },
		commit:  func(position string) { check(c.Commit(ctx, position)) },
	}
}

// directCallOf returns a channel that bench reads from the store.
func directCallOf(c *calls.Channel) call {
	ctx := context.Background()
	return call{
		id: c.ID,
		await: func() (string, string) {
			item := must(c.Await(ctx, calls.AwaitOptions{}))
			return item.Path, item.Token
		},
		receive: func() string { return must(c.Receive(ctx)).Position },
		commit:  func(position string) { check(c.Commit(ctx, position)) },
	}
}

// arrivals compares how long a callback takes to a runtime on /ws/runtime and to one that
// reads the store itself.
func arrivals(at *site, s settings) {
	t := at.startTelapi()
	defer t.kill()
	direct, runtime := at.directRuntime(), t.connectRuntime()
	defer direct.Close()
	defer runtime.Close()
	sides := [2][]call{make([]call, s.connections), make([]call, s.connections)}
	parallel(s.connections, s.connections, func(i int) {
		sides[0][i] = callOf(must(runtime.Open(context.Background(), uuid.NewString(), wire.Open{Endpoint: t.endpoint, Profile: []byte(botProfile)})))
		sides[1][i] = directCallOf(openCalls(direct, 1)[0])
	})
	fmt.Printf("time from the POST of a callback to Receive; %d channels, %d callbacks/s\n", s.connections, arrivalsPerSecond)
	each := max(1, int(arrivalsPerSecond*s.span.Seconds()/float64(s.connections)))
	var took [2][2][]float64 // by side and quantile, of each round
	for i := range arrivalRounds*s.rounds + 1 {
		for j := range sides {
			side := (i + j) % 2
			latencies := measureArrivals(t.addr, sides[side], each)
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
	for side, name := range []string{"/ws/runtime", "from the store"} {
		fmt.Printf("  %-18s p50 %6.2f ms   p99 %6.2f ms\n", name, 1e3*middle(took[side][0]), 1e3*middle(took[side][1]))
	}
	fmt.Printf("  %-18s p50 %6.2f      p99 %6.2f (target: p99 at most 1.30)\n", "ratio", middle(ratios[0]), middle(ratios[1]))
}

// measureArrivals sends callbacks to calls at a fixed rate, one at a time to each, and
// returns the time from each request to its first entry.
func measureArrivals(addr string, list []call, each int) []time.Duration {
	var group sync.WaitGroup
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
		group.Go(func() {
			defer close(requests)
			for n := range each {
				path, token := c.await()
				time.Sleep(time.Until(start.Add(interval*time.Duration(n) + phase)))
				requests <- callbackRequest(addr, path, token, c.id)
				var position string
				for entry := range entriesPerBody {
					position = c.receive()
					if entry == 0 {
						took[i] = append(took[i], time.Since(<-sent))
					}
				}
				c.commit(position)
			}
		})
	}
	if r := load(connectAll(nil, len(list), addr), http.StatusAccepted, sources); r.errors > 0 {
		check(fmt.Errorf("%d callbacks failed", r.errors))
	}
	group.Wait()
	return slices.Concat(took...)
}
