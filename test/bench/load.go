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
}

// load sends the same request over many kept-alive connections, one at a time
// on each, and measures what comes back. It parses no more of an answer than it
// must, so that the generator does not hide the difference between servers.
func load(addr string, request []byte, connections int, span time.Duration) (result, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed int
	var wg sync.WaitGroup
	stop := time.Now().Add(span)
	for range connections {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return result{}, fmt.Errorf("connect to %s: %w", addr, err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			took, errs := drive(conn, request, stop)
			mu.Lock()
			all, failed = append(all, took...), failed+errs
			mu.Unlock()
		})
	}
	wg.Wait()
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

func drive(conn net.Conn, request []byte, stop time.Time) (took []time.Duration, errs int) {
	in := bufio.NewReaderSize(conn, 16<<10)
	for start := time.Now(); start.Before(stop); {
		if _, err := conn.Write(request); err != nil {
			return took, errs + 1
		}
		status, err := readAnswer(in)
		if err != nil {
			return took, errs + 1
		}
		now := time.Now()
		if status != 200 {
			errs++
		} else {
			took = append(took, now.Sub(start))
		}
		start = now
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

// interleave measures both servers in turns, so that whatever else the machine
// does falls on both, and returns the medians.
func interleave(rounds int, a, b func() (result, error)) (medianA, medianB result, err error) {
	var as, bs []result
	for range rounds {
		ra, err := a()
		if err != nil {
			return result{}, result{}, err
		}
		rb, err := b()
		if err != nil {
			return result{}, result{}, err
		}
		as, bs = append(as, ra), append(bs, rb)
	}
	return median(as), median(bs), nil
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
	return m
}
