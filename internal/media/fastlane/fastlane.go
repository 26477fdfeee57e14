// Package fastlane is a fast path in front of a net/http server. It serves simple
// GET requests from a cache with one write, and runs the server's handler for
// simple PUT requests. It leaves all other requests to the server.
//
// It works below net/http, in the Read method of each connection. When the
// server reads its next request, the fast path reads it first. If it can serve
// the request, it does so and waits for the next one. Otherwise Read returns the
// request to the server. The server thus owns all connections.
//
// A randomised test compares its responses with those of net/http.
package fastlane

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Blob is the content of a path, served with status 200: the first Size bytes of
// File, which must not change. The Lane closes the file.
type Blob struct {
	Header http.Header // the Lane adds Date and Content-Length
	File   *os.File
	Size   int64
}

// Options configure a Lane.
type Options struct {
	// MaxBytes limits the cache, which holds blobs in memory or, for connections
	// without TLS, as open files. If it is 0, the server serves all requests.
	MaxBytes int64

	// Load returns the blob of a path that is not cached. It returns false if
	// there is none or if it is larger than limit; then the server serves the
	// request. A path consists of letters, digits and "/._-".
	Load func(path string, limit int64) (Blob, bool)

	// MaxUpload limits the bodies of PUT requests on the fast path, to less than
	// 256 KiB. If it is 0, the server serves all requests with a body. The
	// handler must not retain the request, which has no TLS state and no context
	// values. Its response is sent when it returns.
	MaxUpload int64

	// Served, if set, is called for each response from the cache. It must be
	// fast.
	Served func(path string, bytes int)
}

// Lane is the fast path of one server, for any number of listeners.
type Lane struct {
	cache      *cache
	served     func(path string, bytes int)
	date       atomic.Pointer[dateField]
	handler    http.Handler // of the server
	maxUpload  int64
	tlsBuffers sync.Pool // of *[]byte

	headerTimeout, idleTimeout, writeTimeout time.Duration

	draining atomic.Bool
	open     sync.WaitGroup
	mu       sync.Mutex
	conns    map[*conn]struct{}
}

// New returns a Lane with an empty cache.
func New(o Options) *Lane {
	l := &Lane{cache: newCache(o.MaxBytes, o.Load), served: o.Served, maxUpload: min(o.MaxUpload, maxUploadBytes), conns: map[*conn]struct{}{}}
	if l.served == nil {
		l.served = func(string, int) {}
	}
	return l
}

// Attach connects the Lane to srv. Call it once, before srv serves. The Lane
// applies srv's ReadHeaderTimeout, IdleTimeout and, per response, WriteTimeout.
// ReadTimeout must be 0, because net/http counts it from the start of the
// connection. Handlers limit the time to read a body with
// http.ResponseController.
func (l *Lane) Attach(srv *http.Server) {
	l.handler = srv.Handler
	l.headerTimeout, l.idleTimeout, l.writeTimeout = srv.ReadHeaderTimeout, srv.IdleTimeout, srv.WriteTimeout
	if l.idleTimeout == 0 {
		l.idleTimeout = l.headerTimeout
	}
	next := srv.ConnState
	srv.ConnState = func(nc net.Conn, state http.ConnState) {
		if c, ok := nc.(interface{ stateChanged(http.ConnState) }); ok {
			c.stateChanged(state)
		}
		if next != nil {
			next(nc, state)
		}
	}
	srv.RegisterOnShutdown(l.closeIdle)
}

// Listen returns a listener for Serve of the attached server. With a TLS
// configuration its connections are encrypted and use HTTP/1.1.
func (l *Lane) Listen(ln net.Listener, config *tls.Config) net.Listener {
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"}
		config.DynamicRecordSizingDisabled = true // responses are sent at once
	}
	return &listener{ln, l, config}
}

// Change runs a function that replaces or deletes the blob of a path. The Lane
// does not serve the path from the cache meanwhile. Requests that begin after
// Change has returned get the new state.
func (l *Lane) Change(path string, change func() error) error {
	l.cache.beginChange(path)
	defer l.cache.endChange(path)
	return change()
}

// Stats are figures for metrics.
type Stats struct {
	Hits, Loads    uint64 // responses from the cache, and blobs loaded into it
	Objects, Bytes int64  // in the cache
	Connections    int64  // open
}

// Stats returns current figures.
func (l *Lane) Stats() Stats {
	s := l.cache.stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Connections = int64(len(l.conns))
	return s
}

// Drain waits for active responses after srv.Shutdown. It cuts them off when ctx
// ends.
func (l *Lane) Drain(ctx context.Context) error {
	l.closeIdle()
	done := make(chan struct{})
	go func() { l.open.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		l.each(func(c *conn) { _ = c.socket.Close() })
		return context.Cause(ctx)
	}
}

// closeIdle closes connections that wait for a request. The others close after
// their response.
func (l *Lane) closeIdle() {
	l.draining.Store(true)
	l.each(func(c *conn) {
		if c.state.CompareAndSwap(idle, closing) {
			_ = c.Conn.Close()
		}
	})
}

func (l *Lane) each(do func(*conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		do(c)
	}
}

// listener wraps the connections of a listener.
type listener struct {
	net.Listener
	lane   *Lane
	config *tls.Config // nil: no TLS
}

func (ln *listener) Accept() (net.Conn, error) {
	socket, err := ln.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if ln.config == nil {
		c := newConn(socket, ln.lane)
		c.sender = newSender(socket)
		ln.lane.add(c)
		return plainConn{c}, nil
	}
	c := newTLSConn(socket, ln.lane, ln.config)
	ln.lane.add(c.conn)
	return c, nil
}

func (l *Lane) add(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	l.open.Add(1)
}

func (l *Lane) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; open {
		delete(l.conns, c)
		l.open.Done()
	}
}
