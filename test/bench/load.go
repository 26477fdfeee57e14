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
	costs     []float64 // CPU µs per request or frame: server, then Redis and bench if measured
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

// load opens one connection per source and sends its requests one at a time. It
// parses as little of a response as possible, so that its own CPU use does not
// hide differences between servers.
func load(addr string, status int, sources []source) (result, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed int
	var wg sync.WaitGroup
	began := time.Now()
	for _, next := range sources {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return result{}, fmt.Errorf("connect to %s: %w", addr, err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			took, errs := sendAll(conn, status, next)
			mu.Lock()
			all, failed = append(all, took...), failed+errs
			mu.Unlock()
		})
	}
	wg.Wait()
	span := time.Since(began)
	if len(all) == 0 {
		return result{}, fmt.Errorf("no request to %s succeeded", addr)
	}
	slices.Sort(all)
	return result{
		perSecond: float64(len(all)) / span.Seconds(),
		p99:       all[len(all)*99/100],
		errors:    failed,
	}, nil
}

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
	var as, bs []result
	var ratios []float64
	for i := range rounds {
		var a, b result
		steps := []func() error{
			func() (err error) { a, err = telapi(); return err },
			func() (err error) { b, err = baseline(); return err },
		}
		if i%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return comparison{}, err
			}
		}
		as, bs, ratios = append(as, a), append(bs, b), append(ratios, a.perSecond/b.perSecond)
	}
	slices.Sort(ratios)
	return comparison{median(as), median(bs), ratios[len(ratios)/2]}, nil
}

func median(rs []result) result {
	var rates []float64
	var tails []time.Duration
	var m result
	for _, r := range rs {
		rates, tails = append(rates, r.perSecond), append(tails, r.p99)
		m.errors += r.errors
	}
	slices.Sort(rates)
	slices.Sort(tails)
	m.perSecond, m.p99 = rates[len(rates)/2], tails[len(tails)/2]
	for i := range rs[0].costs {
		var each []float64
		for _, r := range rs {
			each = append(each, r.costs[i])
		}
		slices.Sort(each)
		m.costs = append(m.costs, each[len(each)/2])
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
			fmt.Printf("   CPU µs each: server %.0f, Redis %.0f, bench %.0f", row.costs[0], row.costs[1], row.costs[2])
		}
		fmt.Println()
	}
	fmt.Printf("  %-18s %8.2f %s\n", "ratio", c.ratio, target)
}
