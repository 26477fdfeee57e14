package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// result is the result of one round.
type result struct {
	perSecond float64
	p99       time.Duration
	errors    int
	costs     []float64 // CPU µs per request or frame: server, Redis, bench, PostgreSQL; empty if not measured
}

// source returns the next request of a connection, or nil at the end.
type source func() []byte

// repeat returns the same request until span has passed.
func repeat(request []byte, span time.Duration) source {
	stop := time.Now().Add(span)
	return func() []byte {
		if time.Now().After(stop) {
			return nil
		}
		return request
	}
}

// to returns the same address for every connection.
func to(addr string) func(int) string { return func(int) string { return addr } }

// load opens one connection per source and sends its requests one at a time. It
// parses as little of a response as possible, so that its own CPU use does not
// hide differences between servers.
func load(addr func(i int) string, status int, sources []source) (result, error) {
	var mu sync.Mutex
	var latencies []time.Duration
	var failed int
	var wg sync.WaitGroup
	start := time.Now()
	for i, next := range sources {
		conn, err := net.Dial("tcp", addr(i))
		if err != nil {
			return result{}, fmt.Errorf("connect to %s: %w", addr(i), err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			took, errs := sendAll(conn, status, next)
			mu.Lock()
			latencies, failed = append(latencies, took...), failed+errs
			mu.Unlock()
		})
	}
	wg.Wait()
	span := time.Since(start)
	if len(latencies) == 0 {
		return result{}, fmt.Errorf("no request to %s succeeded", addr(0))
	}
	slices.Sort(latencies)
	return result{
		perSecond: float64(len(latencies)) / span.Seconds(),
		p99:       latencies[len(latencies)*99/100],
		errors:    failed,
	}, nil
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

// readResponse skips a response with a Content-Length and returns its status.
func readResponse(in *bufio.Reader) (status int, err error) {
	length := -1
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
			if length < 0 {
				return 0, fmt.Errorf("response without Content-Length")
			}
			_, err := io.CopyN(io.Discard, in, int64(length))
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
func interleave(rounds int, telapi, baseline func() (result, error)) (comparison, error) {
	var telapiResults, baselineResults []result
	var ratios []float64
	for i := range rounds {
		var ours, theirs result
		steps := []func() error{
			func() (err error) { ours, err = telapi(); return err },
			func() (err error) { theirs, err = baseline(); return err },
		}
		if i%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return comparison{}, err
			}
		}
		telapiResults, baselineResults = append(telapiResults, ours), append(baselineResults, theirs)
		ratios = append(ratios, ours.perSecond/theirs.perSecond)
	}
	slices.Sort(ratios)
	return comparison{median(telapiResults), median(baselineResults), ratios[len(ratios)/2]}, nil
}

// median returns the median of each figure, and the sum of the errors.
func median(results []result) result {
	var rates []float64
	var latencies []time.Duration
	var m result
	for _, r := range results {
		rates, latencies = append(rates, r.perSecond), append(latencies, r.p99)
		m.errors += r.errors
	}
	slices.Sort(rates)
	slices.Sort(latencies)
	m.perSecond, m.p99 = rates[len(rates)/2], latencies[len(latencies)/2]
	for i := range results[0].costs {
		var costs []float64
		for _, r := range results {
			costs = append(costs, r.costs[i])
		}
		slices.Sort(costs)
		m.costs = append(m.costs, costs[len(costs)/2])
	}
	return m
}

// print prints both results and their ratio.
func (c comparison) print(unit, baseline, baselineUnit, target string) {
	for _, row := range []struct {
		name, unit string
		result
	}{{"telapi", unit, c.telapi}, {baseline, baselineUnit, c.baseline}} {
		fmt.Printf("  %-18s %8.0f %s/s", row.name, row.perSecond, row.unit)
		if row.p99 > 0 {
			fmt.Printf("   p99 %s", row.p99.Round(10*time.Microsecond))
		}
		if row.errors > 0 {
			fmt.Printf("   errors %d", row.errors)
		}
		if len(row.costs) > 0 {
			fmt.Printf("   CPU µs each: server %.0f, Redis %.0f, bench %.0f, database %.0f", row.costs[0], row.costs[1], row.costs[2], row.costs[3])
		}
		fmt.Println()
	}
	fmt.Printf("  %-18s %8.2f %s\n", "ratio", c.ratio, target)
}
