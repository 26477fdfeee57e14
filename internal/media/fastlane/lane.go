// Package fastlane answers the plainest GETs of a net/http server from memory,
// with one write each, runs its handler for the plainest PUTs itself, and leaves
// everything else to that server.
//
// It sits below net/http, in the Read of every connection: where the server
// waits for its next request, the lane reads it first, answers it if it is of
// a form it knows and its object is at hand, and waits for the next. Any other
// request is simply what Read returns. So net/http stays in charge of
// every connection, gets it when the lane is not sure, and gives it back by
// waiting again.
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

// Object is what a plain GET of a path is answered with, always as a 200. Its
// bytes are either Body or the first Size bytes of File, which the lane closes;
// nobody changes them from here on.
type Blob struct {
	Header http.Header // what the handler sets; Date and Content-Length are the lane's
	Body   []byte
	File   *os.File
	Size   int64
}

// Options are what a lane works with.
type Options struct {
	// MaxBytes bounds the bytes of all objects together, in memory or, as
	// connections without TLS need them, in open files; 0 leaves every request
	// to the server.
	MaxBytes int64

	// Load fetches the object of a path that is not in memory. It reports false
	// for a path that has none or whose body exceeds limit: then the server
	// answers. A path consists of letters, digits and "/._-", and is as the
	// client sent it.
	Load func(path string, limit int64) (Blob, bool)

	// MaxUpload bounds the bodies that plain PUTs may have for the lane to run the
	// server's handler itself, without all that net/http does around one: such a
	// request carries no TLS and nothing in its context, is not to be kept, and is
	// answered at the end. Less than 256 KiB; 0 leaves all that have a body to the server.
	MaxUpload int64

	// Served, if set, hears of every answer. It is called on the way of each
	// and has to be quick.
	Served func(path string, bytes int)
}

// Lane is a fast path for any number of listeners of one server.
type Lane struct {
	cache     *cache
	served    func(path string, bytes int)
	date      atomic.Pointer[stamp]
	handler   http.Handler // the server's, for uploads
	maxUpload int64
	held      sync.Pool // for the records of answers

	header, idle, write time.Duration

	draining atomic.Bool
	open     sync.WaitGroup
	mu       sync.Mutex
	conns    map[*conn]struct{}
}

// New returns a lane with nothing in memory.
func New(o Options) *Lane {
	l := &Lane{cache: newCache(o.MaxBytes, o.Load), served: o.Served, maxUpload: min(o.MaxUpload, longestUpload), conns: map[*conn]struct{}{}}
	if l.served == nil {
		l.served = func(string, int) {}
	}
	return l
}

// Attach makes srv give connections back, and the lane keep srv's time-outs
// (ReadHeaderTimeout, IdleTimeout and, per answer, WriteTimeout). It is called
// once, before srv serves. ReadTimeout has to be 0: net/http would count it from
// when a connection came, however long the lane has served it since. A handler
// bounds the reading of a body with http.ResponseController.
func (l *Lane) Attach(srv *http.Server) {
	l.handler = srv.Handler
	l.header, l.idle, l.write = srv.ReadHeaderTimeout, srv.IdleTimeout, srv.WriteTimeout
	if l.idle == 0 {
		l.idle = l.header
	}
	next := srv.ConnState
	srv.ConnState = func(nc net.Conn, state http.ConnState) {
		if c, ok := nc.(interface{ settle(http.ConnState) }); ok {
			c.settle(state)
		}
		if next != nil {
			next(nc, state)
		}
	}
	srv.RegisterOnShutdown(l.drain)
}

// Listen returns a listener for the attached server's Serve. With a TLS
// configuration the connections of ln are encrypted, and speak HTTP/1.1 only.
func (l *Lane) Listen(ln net.Listener, secure *tls.Config) net.Listener {
	if secure != nil {
		secure = secure.Clone()
		secure.NextProtos = []string{"http/1.1"}
		secure.DynamicRecordSizingDisabled = true // answers are sent whole
	}
	return &listener{ln, l, secure}
}

// Change runs what replaces or removes the object of a path, with no answer for
// that path given from memory meanwhile. Whoever asks after it has returned
// gets what is there then.
func (l *Lane) Change(path string, change func() error) error {
	l.cache.close(path)
	defer l.cache.open(path)
	return change()
}

// Stats are figures for metrics.
type Stats struct {
	Hits, Loads    uint64 // answers given, and objects loaded for them
	Objects, Bytes int64  // what is at hand
	Connections    int64  // open, whoever serves them
}

// Stats tells what the lane has done so far.
func (l *Lane) Stats() Stats {
	s := l.cache.stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Connections = int64(len(l.conns))
	return s
}

// Drain follows srv.Shutdown: it waits until the answers under way are written,
// and cuts off those that are not when ctx ends.
func (l *Lane) Drain(ctx context.Context) error {
	l.drain()
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

// drain ends the connections that wait for a request; the others end after the
// answer they are at.
func (l *Lane) drain() {
	l.draining.Store(true)
	l.each(func(c *conn) {
		if c.state.CompareAndSwap(waiting, closing) {
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

// listener yields every connection at once, with the lane in its Read.
type listener struct {
	net.Listener
	lane   *Lane
	secure *tls.Config
}

func (ln *listener) Accept() (net.Conn, error) {
	socket, err := ln.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if ln.secure == nil {
		c := newConn(socket, ln.lane)
		c.sender = newSender(socket)
		ln.lane.remember(c)
		return plainConn{c}, nil
	}
	c := newSecureConn(socket, ln.lane, ln.secure)
	ln.lane.remember(c.conn)
	return c, nil
}

func (l *Lane) remember(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	l.open.Add(1)
}

func (l *Lane) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; open {
		delete(l.conns, c)
		l.open.Done()
	}
}
