package simulation

import (
	"bufio"
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// peerConn is the server's end of a connection.
type peerConn struct {
	store *store
	node  int
	host  *host
	link  *link
	peer  *server.Peer

	input  []byte // incomplete command
	mu     sync.Mutex
	queue  []request
	wake   chan struct{}
	done   chan struct{} // closed when the connection is gone
	closed bool
	output []byte
	muted  bool     // output is collected in output
	topics []string // subscribed; guarded by store.mu
	wrote  int      // number of its last write; guarded by store.mu
}

type request struct {
	args []string
	sent time.Time
	eof  bool
}

// serve starts the server's end of a link.
func (s *store) serve(node int, h *host, l *link) *peerConn {
	c := &peerConn{store: s, node: node, host: h, link: l, wake: make(chan struct{}, 1), done: make(chan struct{})}
	c.peer = server.NewPeer(bufio.NewWriter(c))
	s.mu.Lock()
	s.sessions = append(s.sessions, c)
	s.mu.Unlock()
	go c.run()
	return c
}

// Write implements io.Writer for the engine's replies and notices.
func (c *peerConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	muted := c.muted
	if muted {
		c.output = append(c.output, b...)
	}
	c.mu.Unlock()
	if !muted {
		c.link.down.send(bytes.Clone(b))
	}
	return len(b), nil
}

// kill closes the connection from the store's side. The caller holds store.mu.
func (c *peerConn) kill() {
	c.mu.Lock()
	closed := c.closed
	c.closed, c.muted = true, true
	c.mu.Unlock()
	if !closed {
		close(c.done)
		c.unsubscribe()
	}
}

// unsubscribe ends the peer's subscriptions in the engine, which has no other
// public way to end them.
func (c *peerConn) unsubscribe() {
	c.mu.Lock()
	muted := c.muted
	c.muted = true
	c.mu.Unlock()
	c.store.engine.Server().Dispatch(c.peer, []string{"UNSUBSCRIBE"})
	c.peer.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = muted
}

// breakSubscriptions closes the connections of a host that have subscriptions.
func (s *store) breakSubscriptions(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = slices.DeleteFunc(s.sessions, func(c *peerConn) bool {
		if c.host != h || len(c.topics) == 0 {
			return false
		}
		c.kill()
		c.link.reset(false)
		return true
	})
}

// moveTo restores the subscriptions of a connection on another engine. The
// client does not notice.
func (c *peerConn) moveTo(engine *miniredis.Miniredis) {
	c.mu.Lock()
	c.muted = true
	c.mu.Unlock()
	c.peer = server.NewPeer(bufio.NewWriter(c))
	if len(c.topics) > 0 {
		engine.Server().Dispatch(c.peer, append([]string{"SUBSCRIBE"}, c.topics...))
		c.peer.Flush()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = false
}

// feed takes bytes from the client.
func (c *peerConn) feed(part chunk) {
	c.input = append(c.input, part.data...)
	c.mu.Lock()
	for {
		args, n := parseCommand(c.input)
		if n == 0 {
			break
		}
		c.input = c.input[n:]
		c.queue = append(c.queue, request{args: args, sent: part.sent})
	}
	if part.eof {
		c.queue = append(c.queue, request{eof: true})
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run executes the connection's commands.
func (c *peerConn) run() {
	for {
		c.mu.Lock()
		var next *request
		if len(c.queue) > 0 {
			next = &c.queue[0]
			c.queue = c.queue[1:]
		}
		c.mu.Unlock()
		switch {
		case next == nil:
			select {
			case <-c.wake:
			case <-c.done:
				return
			}
		case next.eof:
			c.store.mu.Lock()
			c.store.sessions = slices.DeleteFunc(c.store.sessions, func(other *peerConn) bool { return other == c })
			c.kill()
			c.store.mu.Unlock()
			return
		default:
			c.execute(*next)
		}
	}
}

// wait executes WAIT.
func (c *peerConn) wait(args []string) {
	ms, _ := strconv.Atoi(args[2])
	expires := time.Now().Add(time.Duration(ms) * time.Millisecond)
	c.store.mu.Lock()
	number := c.wrote
	c.store.mu.Unlock()
	for {
		again := c.store.confirm(c.node, number)
		if again.IsZero() {
			c.link.down.send([]byte(":1\r\n"))
			return
		}
		if !time.Now().Before(expires) {
			c.link.down.send([]byte(":0\r\n"))
			return
		}
		if expires.Before(again) {
			again = expires
		}
		timer := time.NewTimer(time.Until(again))
		select {
		case <-timer.C:
		case <-c.done:
			return
		}
	}
}

// execute runs a command and sends the reply. A command that blocks is repeated
// without blocking whenever a stream has grown.
func (c *peerConn) execute(r request) {
	if strings.EqualFold(r.args[0], "WAIT") {
		c.wait(r.args)
		return
	}
	args, block := withoutBlock(r.args)
	expires := time.Now().Add(block)
	caught := c.store.trapped(args)
	if caught.then != nil {
		caught.then()
	}
	if caught.hold > 0 {
		c.store.world.trace("store", "%s from %s is held for %v", caught.script, c.host.name, caught.hold)
		c.store.world.ledger.trouble(caught.hold)
		timer := time.NewTimer(caught.hold)
		select {
		case <-timer.C:
		case <-c.done:
		}
		timer.Stop()
	}
	for {
		c.store.mu.Lock()
		if c.isClosed() {
			c.store.mu.Unlock()
			return
		}
		reply := c.store.run(c, args, r.sent)
		added := c.store.added
		c.store.mu.Unlock()
		if caught.delay > 0 {
			c.store.world.trace("store", "the reply of %s to %s takes %v", caught.script, c.host.name, caught.delay)
			c.store.world.ledger.trouble(caught.delay)
			c.host.stall(toClient, caught.delay)
		}
		if caught.script != "" && caught.hold == 0 && caught.delay == 0 {
			c.store.world.trace("store", "the reply of %s to %s is lost", caught.script, c.host.name)
			c.store.world.ledger.trouble(time.Second)
			c.link.reset(true)
			return
		}
		if block == 0 || string(reply) != "*-1\r\n" || !time.Now().Before(expires) {
			c.link.down.send(reply)
			return
		}
		timer := time.NewTimer(time.Until(expires))
		select {
		case <-added:
		case <-timer.C:
		case <-c.done:
		}
		timer.Stop()
	}
}

func (c *peerConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
