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

// result is what one round of load measured.
type result struct {
	perSecond float64
	p99       time.Duration
	errors    int
	costs     []float64 // processor µs per frame of the server, Redis and bench itself, where measured
}

// source gives the requests of one connection, one after the other; nil: no more.
type source func() []byte

// again gives the same request until it is time to stop.
func again(request []byte, span time.Duration) source {
	stop := time.Now().Add(span)
	return func() []byte {
		if time.Now().After(stop) {
			return nil
		}
		return request
	}
}

// load sends what each source gives over a kept-alive connection of its own, one
// request at a time, and measures what comes back. It parses no more of an
// answer than it must, so that the generator does not hide the difference
// between servers.
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
			took, errs := converse(conn, status, next)
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

func converse(conn net.Conn, want int, next source) (took []time.Duration, errs int) {
	in := bufio.NewReaderSize(conn, 16<<10)
	for request := next(); request != nil; request = next() {
		start := time.Now()
		if _, err := conn.Write(request); err != nil {
			return took, errs + 1
		}
		status, err := readAnswer(in)
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

// readAnswer skips one answer with a Content-Length and returns its status.
func readAnswer(in *bufio.Reader) (status int, err error) {
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
				return 0, fmt.Errorf("answer without Content-Length")
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

// duel is what two servers measured in turns.
type duel struct {
	ours, bare result
	ratio      float64
}

// interleave measures both servers in turns, so that whatever else the machine
// does falls on both, and returns the medians: of each, and of the ratios of
// neighbours.
func interleave(rounds int, ours, bare func() (result, error)) (d duel, err error) {
	var as, bs []result
	var ratios []float64
	for i := range rounds {
		var a, b result
		steps := []func() error{
			func() (err error) { a, err = ours(); return err },
			func() (err error) { b, err = bare(); return err },
		}
		if i%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return duel{}, err
			}
		}
		as, bs, ratios = append(as, a), append(bs, b), append(ratios, a.perSecond/b.perSecond)
	}
	slices.Sort(ratios)
	return duel{median(as), median(bs), ratios[len(ratios)/2]}, nil
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

// print shows both sides and what they are to each other.
func (d duel) print(unit, peer, peerUnit, wanted string) {
	for _, row := range []struct {
		name, unit string
		result
	}{{"telapi", unit, d.ours}, {peer, peerUnit, d.bare}} {
		fmt.Printf("  %-18s %8.0f %s/s", row.name, row.perSecond, row.unit)
		if row.p99 > 0 {
			fmt.Printf("   p99 %s", row.p99.Round(10*time.Microsecond))
		}
		if row.errors > 0 {
			fmt.Printf("   errors %d", row.errors)
		}
		if len(row.costs) > 0 {
			fmt.Printf("   processor µs each: server %.0f, Redis %.0f, load %.0f", row.costs[0], row.costs[1], row.costs[2])
		}
		fmt.Println()
	}
	fmt.Printf("  %-18s %8.2f %s\n", "ratio", d.ratio, wanted)
}
