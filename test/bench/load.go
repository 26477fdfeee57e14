package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// result is the result of one round.
type result struct {
	perSecond float64
	p50, p99  time.Duration
	errors    int
	costs     []float64 // CPU µs per request or frame: server, Redis, bench, PostgreSQL; empty if not measured
}

// source returns the next request of a connection, or nil at the end.
type source func() []byte

// during returns sources that take requests from next until span has passed.
func during(span time.Duration, count int, next source) []source {
	stop := time.Now().Add(span)
	return slices.Repeat([]source{func() []byte {
		if time.Now().After(stop) {
			return nil
		}
		return next()
	}}, count)
}

// connectAll opens n connections, in turn to each address, with TLS if secure is not nil.
// With TLS the cipher must be AES-128-GCM, so that servers are compared and not ciphers.
func connectAll(secure *tls.Config, n int, addrs ...string) []net.Conn {
	conns := make([]net.Conn, n)
	parallel(n, 32, func(i int) {
		addr := addrs[i%len(addrs)]
		if secure == nil {
			conns[i] = must(net.Dial("tcp", addr))
			return
		}
		conn := must(tls.Dial("tcp", addr, secure))
		if s := conn.ConnectionState(); s.Version != tls.VersionTLS13 || s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			check(fmt.Errorf("%s uses %s with %s", addr, tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite)))
		}
		conns[i] = conn
	})
	return conns
}

// load sends the requests of one source on each connection, one at a time, and closes
// the connections. It parses as little of a response as possible, so that its own CPU
// use does not hide differences between servers.
func load(conns []net.Conn, status int, sources []source) result {
	var mu sync.Mutex
	var latencies []time.Duration
	var failed int
	var wg sync.WaitGroup
	start := time.Now()
	for i, next := range sources {
		wg.Go(func() {
			defer func() { _ = conns[i].Close() }()
			took, errs := sendAll(conns[i], status, next)
			mu.Lock()
			latencies, failed = append(latencies, took...), failed+errs
			mu.Unlock()
		})
	}
	wg.Wait()
	return newResult(latencies, time.Since(start), failed)
}

func newResult(latencies []time.Duration, span time.Duration, failed int) result {
	if len(latencies) == 0 {
		check(errors.New("no request succeeded"))
	}
	slices.Sort(latencies)
	return result{perSecond: float64(len(latencies)) / span.Seconds(), p50: latencies[len(latencies)/2], p99: latencies[len(latencies)*99/100], errors: failed}
}

// sendAll sends the requests of a source and returns the latency of each success.
func sendAll(conn net.Conn, want int, next source) (took []time.Duration, errs int) {
	in := bufio.NewReaderSize(conn, 16<<10)
	for request := next(); request != nil; request = next() {
		start := time.Now()
		if _, err := conn.Write(request); err != nil {
			return took, errs + 1
		}
		status, err := readResponse(in)
		if err != nil {
			return took, errs + 1
		}
		if status != want {
			errs++
		} else {
			took = append(took, time.Since(start))
		}
	}
	return took, errs
}

// readResponse skips a response and returns its status.
func readResponse(in *bufio.Reader) (status int, err error) {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if len(line) < 12 {
				return 0, fmt.Errorf("status line %q", line)
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return 0, err
			}
		case len(line) == 0:
			_, err := in.Discard(length)
			return status, err
		case len(line) > 16 && bytes.EqualFold(line[:16], []byte("content-length: ")):
			if length, err = strconv.Atoi(string(line[16:])); err != nil {
				return 0, err
			}
		}
	}
}

// comparison contains the medians of two servers and of their ratios.
type comparison struct {
	telapi, baseline result
	ratio            float64
}

// interleave measures both servers alternately, so that other load on the machine
// affects both. The ratio is the median of the ratios of adjacent rounds.
func interleave(rounds int, telapi, baseline func() result) comparison {
	var results [2][]result
	var ratios []float64
	for i := range rounds {
		for j := range 2 {
			if (i+j)%2 == 0 {
				results[0] = append(results[0], telapi())
			} else {
				results[1] = append(results[1], baseline())
			}
		}
		ratios = append(ratios, results[0][i].perSecond/results[1][i].perSecond)
	}
	return comparison{median(results[0]), median(results[1]), middle(ratios)}
}

// median returns the median of each figure, and the sum of the errors.
func median(results []result) (m result) {
	figure := func(of func(result) float64) float64 {
		var list []float64
		for _, r := range results {
			list = append(list, of(r))
		}
		return middle(list)
	}
	for _, r := range results {
		m.errors += r.errors
	}
	m.perSecond = figure(func(r result) float64 { return r.perSecond })
	m.p99 = time.Duration(figure(func(r result) float64 { return float64(r.p99) }))
	for i := range results[0].costs {
		m.costs = append(m.costs, figure(func(r result) float64 { return r.costs[i] }))
	}
	return m
}

// middle returns the median.
func middle(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// print prints a result in one line.
func (r result) print(name, unit string) {
	fmt.Printf("  %-44s %8.0f %s/s", name, r.perSecond, unit)
	if r.p99 > 0 {
		fmt.Printf("   p99 %s", r.p99.Round(10*time.Microsecond))
	}
	if r.errors > 0 {
		fmt.Printf("   errors %d", r.errors)
	}
	if len(r.costs) > 0 {
		fmt.Printf("   CPU µs each: server %.0f, Redis %.0f, bench %.0f, database %.0f", r.costs[0], r.costs[1], r.costs[2], r.costs[3])
	}
	fmt.Println()
}

// print prints both results and their ratio.
func (c comparison) print(unit, baseline, target string) {
	c.telapi.print("telapi", unit)
	c.baseline.print(baseline, unit)
	fmt.Printf("  %-44s %8.2f %s\n", "ratio", c.ratio, target)
}
