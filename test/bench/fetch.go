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

// fleet is a number of kept-alive connections to one server. They are open before
// a round begins, so that handshakes are no part of what is measured.
type fleet struct {
	conns []net.Conn
	pids  []int // of the server, whose processor time is counted
}

// board opens the connections, over TLS if there is a configuration. With TLS
// the cipher has to be AES-128-GCM: otherwise ciphers are compared, not servers.
func board(addr string, secure *tls.Config, connections int, pids []int) (*fleet, error) {
	f := &fleet{conns: make([]net.Conn, connections), pids: pids}
	_, err := many(connections, 32, func(i int) (err error) {
		if secure == nil {
			f.conns[i], err = net.Dial("tcp", addr)
			return err
		}
		conn, err := tls.Dial("tcp", addr, secure)
		if err != nil {
			return err
		}
		f.conns[i] = conn
		if s := conn.ConnectionState(); s.Version != tls.VersionTLS13 || s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			return fmt.Errorf("%s speaks %s with %s", addr, tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite))
		}
		return nil
	})
	if err != nil {
		f.leave()
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return f, nil
}

func (f *fleet) leave() {
	for _, c := range f.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// round sends one request after the other on every connection, as next makes
// them in a buffer or elsewhere, and measures the answers.
func (f *fleet) round(next func(buffer []byte) []byte, span time.Duration, status int) (result, error) {
	var mu sync.Mutex
	var all []time.Duration
	var group sync.WaitGroup
	var failure error
	spent := 0.0
	for _, pid := range f.pids {
		spent -= spentBy(pid)
	}
	stop := time.Now().Add(span)
	pool := sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
	for _, conn := range f.conns {
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
			if all = append(all, took...); err != nil {
				failure = err
			}
		})
	}
	group.Wait()
	for _, pid := range f.pids {
		spent += spentBy(pid)
	}
	if failure != nil {
		return result{}, fmt.Errorf("one of %d connections: %w", len(f.conns), failure)
	}
	slices.Sort(all)
	n := float64(len(all))
	return result{perSecond: n / span.Seconds(), p99: all[len(all)*99/100], costs: []float64{spent * 1e6 / n}}, nil
}

// exchange sends a request and reads its answer: the head in a piece, so that a
// connection that waits needs no large buffer, and the body in large ones.
func exchange(conn net.Conn, request, head []byte, pool *sync.Pool, want int) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	n, end := 0, -1
	for end < 0 {
		if n == len(head) {
			return fmt.Errorf("a head of more than %d bytes", n)
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
		return fmt.Errorf("answer %q: %w", head[:end], err)
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

// parseHead reads the status and the length of an answer; a 201 may do without
// one.
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
