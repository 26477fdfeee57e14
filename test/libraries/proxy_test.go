package libraries

import (
	"io"
	"net"
	"sync"
	"testing"

	"telapi/test/testkit"
)

// proxy forwards TCP connections, and can cut them.
type proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	cuts  int // connections that were cut
}

// startProxy forwards to target until the test ends.
func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &proxy{listener: listener, target: target, conns: map[net.Conn]bool{}}
	p.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.forward(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	var pumps sync.WaitGroup
	pumps.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
	_, _ = io.Copy(client, server)
	_, _ = client.Close(), server.Close()
	pumps.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
}

// cut resets all connections, so that bytes under way are lost in both directions. It
// returns false if there are none.
func (p *proxy) cut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.cuts
	for conn := range p.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		delete(p.conns, conn)
		p.cuts++
	}
	return p.cuts > before
}

func (p *proxy) cutCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}
