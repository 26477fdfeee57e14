package simulation

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// direction is one of the two directions of a connection.
type direction int

const (
	toServer direction = iota
	toClient
)

var errReset = errors.New("simulated network: connection reset")

// host is one life of a process: its connections and the state of the network
// between it and its peers. After a crash the process continues under a new host.
type host struct {
	world *world
	name  string

	mu      sync.Mutex
	refused time.Time // dialing fails until then
	held    [2]time.Time
	slow    time.Duration // upper bound of the additional delay
	dead    bool
	links   []*link
	dialed  int
}

func newHost(w *world, name string) *host { return &host{world: w, name: name} }

// delay returns how long a chunk travels, from a random number. The least digits
// keep two events from happening at the same instant, whose order would be up to
// the Go scheduler.
func (h *host) delay(random uint64) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return 100*time.Microsecond + time.Duration(random%uint64(900*time.Microsecond+h.slow))
}

func (h *host) heldUntil(d direction) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[d]
}

// stallOne holds the bytes of one of the host's connections.
func (h *host) stallOne(n int, d direction, length time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.links) > 0 {
		l := h.links[n%len(h.links)]
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held[d] = time.Now().Add(length)
	}
}

// stall holds the bytes of one direction for a while. They arrive afterwards.
func (h *host) stall(d direction, length time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := time.Now().Add(length); until.After(h.held[d]) {
		h.held[d] = until
	}
}

// refuse makes dialing fail for a while.
func (h *host) refuse(length time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = time.Now().Add(length)
}

func (h *host) setSlow(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = d
}

// reset breaks all connections. The server still receives the bytes that are under way if
// effect is set; otherwise it does not notice. Its replies are lost in any case.
func (h *host) reset(effect bool) {
	h.mu.Lock()
	links := h.links
	h.links = nil
	h.mu.Unlock()
	for _, l := range links {
		l.reset(effect)
	}
}

// crash disconnects the host permanently. The server still receives the bytes that are
// under way if effect is set.
func (h *host) crash(effect bool) {
	h.mu.Lock()
	h.dead = true
	h.mu.Unlock()
	h.reset(effect)
}

func (h *host) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.dead
}

var errRefused = errors.New("simulated network: connection refused")

// dial connects to a node of the store.
func (h *host) dial(ctx context.Context, addr string) (net.Conn, error) {
	node := slices.Index(h.world.store.addresses(), addr)
	return h.connect(ctx, func(l *link, _ int) {
		if h.world.store.up(node) {
			l.up.deliver = h.world.store.serve(node, h, l).feed
		}
	})
}

// dialInstance connects a runtime to one of the running instances.
func (h *host) dialInstance(ctx context.Context, _, _ string) (net.Conn, error) {
	return h.connect(ctx, func(l *link, number int) {
		running := h.world.runningInstances()
		if len(running) == 0 {
			return
		}
		n := mix(h.world.key("balancer", h.name, number), time.Now()) % uint64(len(running))
		// The other end has the same pipes in the other direction.
		other := &link{host: h, up: l.down, down: l.up, changed: make(chan struct{})}
		if running[n].accept(other) {
			l.up.deliver = other.receive
		}
	})
}

// connect connects to a server. serve sets where the bytes are delivered, unless the
// server refuses the connection.
func (h *host) connect(ctx context.Context, serve func(l *link, number int)) (net.Conn, error) {
	h.mu.Lock()
	h.dialed++
	number, name := h.dialed, h.name
	h.mu.Unlock()
	select {
	case <-time.After(h.delay(h.world.key("dial", name, number))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h.mu.Lock()
	refused := h.dead || time.Now().Before(h.refused)
	h.mu.Unlock()
	if refused {
		return nil, errRefused
	}
	l := &link{host: h, changed: make(chan struct{})}
	l.up = newPipe(h, toServer, number, nil)
	l.down = newPipe(h, toClient, number, l.receive)
	l.up.link, l.down.link = l, l
	if serve(l, number); l.up.deliver == nil {
		return nil, errRefused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return nil, errRefused
	}
	h.links = append(h.links, l)
	return l, nil
}

// link is one end of a connection.
type link struct {
	host     *host
	up, down *pipe // up: away from this end

	mu       sync.Mutex
	held     [2]time.Time  // until when bytes of this connection are held
	changed  chan struct{} // closed and replaced when a reader has to look again
	buffer   []byte
	err      error
	deadline time.Time
}

func (l *link) heldUntil(d direction) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[d]
}

// receive takes bytes from the other end.
func (l *link) receive(c chunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buffer = append(l.buffer, c.data...)
	if c.eof && l.err == nil {
		l.err = errReset
	}
	l.wake()
}

// wake makes readers look again. The caller holds mu.
func (l *link) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) reset(effect bool) {
	if effect {
		l.up.end()
	} else {
		l.up.cut()
	}
	l.down.cut()
	l.fail(errReset)
}

func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.wake()
}

// Read implements net.Conn.
func (l *link) Read(b []byte) (int, error) {
	for {
		l.mu.Lock()
		if n := copy(b, l.buffer); n > 0 {
			l.buffer = l.buffer[n:]
			l.mu.Unlock()
			return n, nil
		}
		err, changed, deadline := l.err, l.changed, l.deadline
		l.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if deadline.IsZero() {
			<-changed
			continue
		}
		if !time.Now().Before(deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Write implements net.Conn.
func (l *link) Write(b []byte) (int, error) {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if !l.up.send(append([]byte(nil), b...)) {
		return 0, errReset
	}
	return len(b), nil
}

// Close implements net.Conn. Data that was written before still arrives.
func (l *link) Close() error {
	l.up.end()
	l.down.cut()
	l.fail(net.ErrClosed)
	return nil
}

// SetDeadline implements net.Conn.
func (l *link) SetDeadline(t time.Time) error { return l.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (l *link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	l.wake()
	return nil
}

// SetWriteDeadline implements net.Conn. Writes never block.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (l *link) LocalAddr() net.Addr { return hostAddress(l.host.name) }

// RemoteAddr implements net.Conn.
func (l *link) RemoteAddr() net.Addr { return hostAddress("server") }

type hostAddress string

func (a hostAddress) Network() string { return "simulated" }
func (a hostAddress) String() string  { return string(a) }
