package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// connections are open connections to one server, so that rounds do not include
// handshakes.
type connections struct {
	conns []net.Conn
	pids  []int // processes of the server, for its CPU time
}

// connectAll opens n connections, with TLS if secure is not nil. With TLS the
// cipher must be AES-128-GCM, so that servers are compared and not ciphers.
func connectAll(addr string, secure *tls.Config, n int, pids []int) (*connections, error) {
	c := &connections{conns: make([]net.Conn, n), pids: pids}
	_, err := parallel(n, 32, func(i int) (err error) {
		if secure == nil {
			c.conns[i], err = net.Dial("tcp", addr)
			return err
		}
		conn, err := tls.Dial("tcp", addr, secure)
		if err != nil {
			return err
		}
		c.conns[i] = conn
		if s := conn.ConnectionState(); s.Version != tls.VersionTLS13 || s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			return fmt.Errorf("%s uses %s with %s", addr, tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite))
		}
		return nil
	})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return c, nil
}

func (c *connections) close() {
	for _, conn := range c.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// round sends requests on all connections, one at a time on each. next returns
// the next request and may reuse the buffer.
func (c *connections) round(next func(buffer []byte) []byte, span time.Duration, status int) (result, error) {
	var mu sync.Mutex
	var latencies []time.Duration
	var group sync.WaitGroup
	var failure error
	cpu := 0.0
	for _, pid := range c.pids {
		cpu -= cpuTime(pid)
	}
	stop := time.Now().Add(span)
	pool := sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
	for _, conn := range c.conns {
		group.Go(func() {
			took := make([]time.Duration, 0, 1024)
			err := error(nil)
			var head [2048]byte
			var request []byte
			for start := time.Now(); err == nil && start.Before(stop); {
				request = next(request)
				err = exchange(conn, request, head[:], &pool, status)
				now := time.Now()
				took, start = append(took, now.Sub(start)), now
			}
			mu.Lock()
			defer mu.Unlock()
			if latencies = append(latencies, took...); err != nil {
				failure = err
			}
		})
	}
	group.Wait()
	for _, pid := range c.pids {
		cpu += cpuTime(pid)
	}
	if failure != nil {
		return result{}, fmt.Errorf("one of %d connections: %w", len(c.conns), failure)
	}
	slices.Sort(latencies)
	n := float64(len(latencies))
	return result{perSecond: n / span.Seconds(), p99: latencies[len(latencies)*99/100], costs: []float64{cpu * 1e6 / n}}, nil
}

// exchange sends a request and reads the response. Only the body needs a large
// buffer, so that idle connections hold none.
func exchange(conn net.Conn, request, head []byte, pool *sync.Pool, want int) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	n, end := 0, -1
	for end < 0 {
		if n == len(head) {
			return fmt.Errorf("response header exceeds %d bytes", n)
		}
		m, err := conn.Read(head[n:])
		if err != nil {
			return err
		}
		n += m
		end = bytes.Index(head[:n], []byte("\r\n\r\n"))
	}
	status, length, err := parseHead(head[:end+2])
	if err != nil || status != want {
		return fmt.Errorf("response %q: %w", head[:end], err)
	}
	rest := length - (n - end - 4)
	if rest == 0 {
		return nil
	}
	buffer := pool.Get().(*[]byte)
	defer pool.Put(buffer)
	for rest > 0 {
		m, err := conn.Read((*buffer)[:min(rest, len(*buffer))])
		if rest -= m; err != nil && rest > 0 {
			return err
		}
	}
	if rest < 0 {
		return io.ErrShortBuffer
	}
	return nil
}

// parseHead returns the status and the length of a response. Only a 200 needs a
// Content-Length.
func parseHead(head []byte) (status, length int, err error) {
	if len(head) < 12 {
		return 0, 0, fmt.Errorf("status line too short")
	}
	if status, err = strconv.Atoi(string(head[9:12])); err != nil {
		return 0, 0, err
	}
	const field = "\r\nContent-Length: "
	if i := bytes.Index(head, []byte(field)); i >= 0 {
		digits, _, _ := bytes.Cut(head[i+len(field):], []byte("\r\n"))
		length, err = strconv.Atoi(string(digits))
	} else if status == 200 {
		err = fmt.Errorf("no Content-Length")
	}
	return status, length, err
}
