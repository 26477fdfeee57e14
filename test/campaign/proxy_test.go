package campaign

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy forwards TCP connections to a server and injects faults into them.
type proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu       sync.Mutex
	links    map[*link]bool
	onAccept func(*link) // applies a running fault to new connections; nil: none
}

// direction is one way through a proxy.
type direction int

const (
	requests direction = iota // to the server
	replies                   // from the server
)

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	gates          [2]gate         // by direction
	reads          [2]atomic.Int64 // by direction
	closed         chan struct{}
	close          func()

	mu          sync.Mutex
	replication bool // the client is a Redis replica
}

// startProxy forwards to target until the test ends.
func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, links: map[*link]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		for _, l := range p.all() {
			l.close()
		}
		p.running.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
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

func (p *proxy) forward(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	l := &link{client: client, server: server, closed: make(chan struct{})}
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
	pumps.Go(func() { l.pump(requests, client, server) })
	pumps.Go(func() { l.pump(replies, server, client) })
	pumps.Wait()
}

// pump copies one direction until either side closes. Bytes that wait at the gate
// are delivered when it opens, even if their sender has closed the connection.
func (l *link) pump(d direction, from, to net.Conn) {
	defer l.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.reads[d].Add(1)
		if d == requests && bytes.Contains(buf[:n], []byte("PSYNC")) {
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

func (l *link) isReplication() bool {
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

func (p *proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// apply runs a function on every connection, and on every new one until the
// returned function is called.
func (p *proxy) apply(f func(*link)) (end func()) {
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

// stall stops one direction of about half of the client connections until resume
// is called. Connections of replicas are not affected.
func stall(proxies []*proxy, d direction) (resume func()) {
	open := make(chan struct{})
	return applyAll(proxies, func(l *link) {
		if rand.IntN(2) == 0 && !l.isReplication() {
			l.gates[d].set(0, open)
		}
	}, func() { close(open) })
}

// stallReplication stops what masters send to their replicas. The returned
// function discards it and closes these connections.
func stallReplication(proxies []*proxy) (discard func()) {
	never := make(chan struct{})
	var stalled []*link
	for _, p := range proxies {
		for _, l := range p.all() {
			if l.isReplication() {
				l.gates[replies].set(0, never)
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

// slow delays every read in both directions until the returned function is called.
func slow(proxies []*proxy, delay time.Duration) (end func()) {
	return applyAll(proxies, func(l *link) {
		for d := range l.gates {
			l.gates[d].set(delay, nil)
		}
	}, func() {
		for _, p := range proxies {
			for _, l := range p.all() {
				for d := range l.gates {
					l.gates[d].set(0, nil)
				}
			}
		}
	})
}

func applyAll(proxies []*proxy, f func(*link), undo func()) (end func()) {
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

// resetShare resets a random share of the connections.
func resetShare(proxies []*proxy, share float64) {
	for _, p := range proxies {
		for _, l := range p.all() {
			if rand.Float64() < share {
				reset(l.client)
				reset(l.server)
				l.close()
			}
		}
	}
}

// reset closes a connection with RST.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
