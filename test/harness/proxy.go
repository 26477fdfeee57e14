package harness

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"telapi/test/testkit"
)

// Proxy forwards TCP connections to a server and injects faults into them.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu       sync.Mutex
	links    map[*Link]bool
	onAccept func(*Link) // applies a running fault to new connections; nil: none
}

// Direction is one way through a proxy.
type Direction int

// The directions.
const (
	Requests Direction = iota // to the server
	Replies                   // from the server
)

// Link is one connection through a proxy.
type Link struct {
	client, server net.Conn
	gates          [2]gate // by direction
	closed         chan struct{}
	close          func()

	mu          sync.Mutex
	replication bool // the client is a Redis replica
}

// StartProxy forwards to target until the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &Proxy{listener: listener, target: target, links: map[*Link]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		for _, l := range p.Links() {
			l.close()
		}
		p.running.Wait()
	})
	return p
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.running.Go(func() { p.forward(client) })
	}
}

func (p *Proxy) forward(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		ResetConn(client)
		return
	}
	l := &Link{client: client, server: server, closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() {
		close(l.closed)
		_ = client.Close()
		_ = server.Close()
	})
	defer l.close()
	p.mu.Lock()
	p.links[l] = true
	if p.onAccept != nil {
		p.onAccept(l)
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(Requests, client, server) })
	pumps.Go(func() { l.pump(Replies, server, client) })
	pumps.Wait()
}

// pump copies one direction until either side closes. Bytes that wait at the gate
// are delivered when it opens, even if their sender has closed the connection.
func (l *Link) pump(d Direction, from, to net.Conn) {
	defer l.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if d == Requests && bytes.Contains(buf[:n], []byte("PSYNC")) {
			l.mu.Lock()
			l.replication = true
			l.mu.Unlock()
		}
		if n > 0 {
			if !l.gates[d].pass(l.closed) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *Link) isReplication() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replication
}

// gate stops or delays the bytes of one direction.
type gate struct {
	mu    sync.Mutex
	delay time.Duration
	open  chan struct{} // closed when the gate opens; nil: it is open
}

// pass waits until bytes can pass. It returns false if the link is closed.
func (g *gate) pass(closed <-chan struct{}) bool {
	g.mu.Lock()
	delay, open := g.delay, g.open
	g.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	if open == nil {
		return true
	}
	select {
	case <-open:
		return true
	case <-closed:
		return false
	}
}

func (g *gate) set(delay time.Duration, open chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.delay, g.open = delay, open
}

// Links returns the connections.
func (p *Proxy) Links() []*Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*Link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// apply runs a function on every connection, and on every new one until the
// returned function is called.
func (p *Proxy) apply(f func(*Link)) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onAccept = f
	for l := range p.links {
		f(l)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.onAccept = nil
	}
}

// Stall stops one direction of about half of the client connections until resume
// is called. Connections of replicas are not affected.
func Stall(proxies []*Proxy, d Direction) (resume func()) {
	open := make(chan struct{})
	return applyAll(proxies, func(l *Link) {
		if rand.IntN(2) == 0 && !l.isReplication() {
			l.gates[d].set(0, open)
		}
	}, func() { close(open) })
}

// StallReplication stops what masters send to their replicas. The returned
// function discards it and closes these connections.
func StallReplication(proxies []*Proxy) (discard func()) {
	never := make(chan struct{})
	var stalled []*Link
	for _, p := range proxies {
		for _, l := range p.Links() {
			if l.isReplication() {
				l.gates[Replies].set(0, never)
				stalled = append(stalled, l)
			}
		}
	}
	return func() {
		for _, l := range stalled {
			l.close()
		}
	}
}

// Slow delays every read in both directions until the returned function is called.
func Slow(proxies []*Proxy, delay time.Duration) (end func()) {
	return applyAll(proxies, func(l *Link) {
		for d := range l.gates {
			l.gates[d].set(delay, nil)
		}
	}, func() {
		for _, p := range proxies {
			for _, l := range p.Links() {
				for d := range l.gates {
					l.gates[d].set(0, nil)
				}
			}
		}
	})
}

func applyAll(proxies []*Proxy, f func(*Link), undo func()) (end func()) {
	var ends []func()
	for _, p := range proxies {
		ends = append(ends, p.apply(f))
	}
	return func() {
		for _, end := range ends {
			end()
		}
		undo()
	}
}

// Reset resets a random share of the connections, so that bytes under way are lost in both
// directions. It returns their number.
func (p *Proxy) Reset(share float64) (n int) {
	for _, l := range p.Links() {
		if rand.Float64() < share {
			ResetConn(l.client)
			ResetConn(l.server)
			l.close()
			n++
		}
	}
	return n
}

// ResetConn closes a connection with RST.
func ResetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
