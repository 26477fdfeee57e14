// Package fastlane is a fast path in front of a net/http server. It serves simple
// GET requests from a cache with one write, and runs the server's handler for
// simple PUT requests. It leaves all other requests to the server.
//
// It works below net/http, in the Read method of each connection. When the
// server reads its next request, the fast path reads it first. If it can serve
// the request, it does so and waits for the next one. Otherwise Read returns the
// request to the server. So the server owns all connections.
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
// File, which must not change. The FastPath closes the file.
type Blob struct {
	Header http.Header // the FastPath adds Date and Content-Length
	File   *os.File
	Size   int64
}

// Options configure a FastPath.
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

	// AcceptHost, if set, reports whether the FastPath may serve requests with this
	// Host. The server serves the others.
	AcceptHost func(host string) bool

	// Served, if set, is called for each response from the cache. It must be
	// fast.
	Served func(path string, bytes int)
}

// FastPath is the fast path of one server, for any number of listeners.
type FastPath struct {
	options    Options
	cache      *cache
	date       atomic.Pointer[dateField]
	handler    http.Handler // of the server
	tlsBuffers sync.Pool    // of *[]byte

	headerTimeout, idleTimeout, writeTimeout time.Duration

	draining atomic.Bool
	open     sync.WaitGroup
	mu       sync.Mutex
	conns    map[*conn]struct{}
}

// New returns a FastPath with an empty cache.
func New(o Options) *FastPath {
	o.MaxUpload = min(o.MaxUpload, maxUploadBytes)
	return &FastPath{options: o, cache: newCache(o.MaxBytes, o.Load), conns: map[*conn]struct{}{}}
}

// Attach connects the FastPath to srv and sets its ConnState. Call it once, before srv
// serves. The FastPath applies srv's ReadHeaderTimeout, IdleTimeout and, per response, WriteTimeout.
// ReadTimeout must be 0, because net/http counts it from the start of the
// connection. Handlers limit the time to read a body with
// http.ResponseController.
func (f *FastPath) Attach(srv *http.Server) {
	f.handler = srv.Handler
	f.headerTimeout, f.idleTimeout, f.writeTimeout = srv.ReadHeaderTimeout, srv.IdleTimeout, srv.WriteTimeout
	srv.ConnState = func(nc net.Conn, state http.ConnState) {
		if c, ok := nc.(interface{ stateChanged(http.ConnState) }); ok {
			c.stateChanged(state)
		}
	}
	srv.RegisterOnShutdown(f.closeIdle)
}

// Listen returns a listener for Serve of the attached server. With a TLS
// configuration its connections are encrypted.
func (f *FastPath) Listen(ln net.Listener, config *tls.Config) net.Listener {
	if config != nil {
		config = config.Clone()
		config.DynamicRecordSizingDisabled = true // responses are sent at once
	}
	return &listener{ln, f, config}
}

// Change runs a function that replaces or deletes the blob of a path. The FastPath
// does not serve the path from the cache meanwhile. Requests that begin after
// Change has returned get the new state.
func (f *FastPath) Change(path string, change func() error) error {
	f.cache.beginChange(path)
	defer f.cache.endChange(path)
	return change()
}

// Stats are figures for metrics.
type Stats struct {
	Hits           uint64 // responses from the cache
	Objects, Bytes int64  // in the cache
}

// Stats returns current figures.
func (f *FastPath) Stats() Stats {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return Stats{Hits: f.cache.hits.Load(), Objects: int64(len(f.cache.entries)), Bytes: f.cache.bytes}
}

// Drain waits for active responses after srv.Shutdown. It cuts them off when ctx
// ends.
func (f *FastPath) Drain(ctx context.Context) error {
	f.closeIdle()
	done := make(chan struct{})
	go func() { f.open.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		f.each(func(c *conn) { _ = c.socket.Close() })
		return context.Cause(ctx)
	}
}

// closeIdle closes connections that wait for a request. The others close after
// their response.
func (f *FastPath) closeIdle() {
	f.draining.Store(true)
	f.each(func(c *conn) {
		if c.state.CompareAndSwap(idle, closing) {
			_ = c.Conn.Close()
		}
	})
}

func (f *FastPath) each(do func(*conn)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		do(c)
	}
}

type listener struct {
	net.Listener
	fastPath *FastPath
	config   *tls.Config // nil: no TLS
}

func (ln *listener) Accept() (net.Conn, error) {
	socket, err := ln.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if ln.config == nil {
		c := newConn(socket, ln.fastPath)
		c.sender = newSender(socket)
		ln.fastPath.add(c)
		return plainConn{c}, nil
	}
	c := newTLSConn(socket, ln.fastPath, ln.config)
	ln.fastPath.add(c.conn)
	return c, nil
}

func (f *FastPath) add(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = struct{}{}
	f.open.Add(1)
}

func (f *FastPath) remove(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, open := f.conns[c]; open {
		delete(f.conns, c)
		f.open.Done()
	}
}
