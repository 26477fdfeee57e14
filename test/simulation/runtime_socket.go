package simulation

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/redact"
	"telapi/internal/runtimeapi"
)

// secret is that of all instances.
const secret redact.Secret = "a secret that all instances have"

// newRuntimes returns the service for runtimes of a process.
func newRuntimes(p *serviceProcess, log *slog.Logger) *runtimeapi.Service {
	return runtimeapi.New(runtimeapi.Deps{
		Connect: func() (*calls.Runtime, error) {
			return calls.New(calls.Options{Store: p.kv.ClientOption(), Name: "simulation", Lease: runtimeapi.Lease, MinReplicas: p.instance.world.replicas})
		},
		Secrets: auth.Secrets{Current: secret}, Instance: p.host.name, TeamShare: 100, Log: log, Registry: prometheus.NewRegistry(),
	})
}

// runtimeSocket is the instance's end of a runtime's connection. It does what the socket
// of internal/httpapi does.
type runtimeSocket struct {
	process *serviceProcess
	link    *link
	ws      *websocket.Conn
	channel *runtimeapi.Conn
	ended   chan struct{}

	writing sync.Mutex

	mu       sync.Mutex
	timer    *time.Timer
	closing  bool
	lastRead time.Time
}

// accept serves the connection of a runtime unless the process is stopping.
func (p *serviceProcess) accept(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	s := &runtimeSocket{process: p, link: l, ended: make(chan struct{})}
	p.clients = append(p.clients, s)
	p.instance.world.running.Go(s.run)
	return true
}

func (s *runtimeSocket) run() {
	defer close(s.ended)
	defer s.link.Close()
	if !s.open() {
		return
	}
	s.mu.Lock()
	s.lastRead = time.Now()
	s.timer = time.AfterFunc(runtimeapi.PingInterval, s.heartbeat)
	s.mu.Unlock()
	s.ws.SetPongHandler(func(string) error { s.heard(); return nil })
	s.channel.Start(s)
	for {
		kind, frame, err := s.ws.ReadMessage()
		if err != nil {
			break
		}
		if closing := s.heard(); !closing && kind == websocket.TextMessage {
			s.channel.Handle(s.process.ctx, frame)
		}
	}
	s.mu.Lock()
	s.closing = true
	s.timer.Stop()
	s.mu.Unlock()
	s.channel.Close()
}

// open handles the handshake.
func (s *runtimeSocket) open() bool {
	buffers := bufio.NewReadWriter(bufio.NewReader(s.link), bufio.NewWriter(s.link))
	r, err := http.ReadRequest(buffers.Reader)
	if err != nil {
		return false
	}
	s.channel, err = s.process.runtimes.Open(runtimeapi.Params{
		Identified: true, BaseURL: "http://instance",
		Authenticate: func(context.Context, string) (auth.Principal, error) {
			return auth.Principal{TeamID: teamID, Scopes: []auth.Scope{auth.RunCalls}}, nil
		},
	})
	if err != nil {
		_, _ = io.WriteString(s.link, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		return false
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{wire.RuntimeProtocol}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ws, err = upgrader.Upgrade(&hijackable{link: s.link, buffers: buffers, header: http.Header{}}, r, nil); err != nil {
		s.channel.Close()
		return false
	}
	return true
}

// hijackable is the response to a handshake.
type hijackable struct {
	link    *link
	buffers *bufio.ReadWriter
	header  http.Header
}

// Hijack implements http.Hijacker.
func (h *hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.link, h.buffers, nil }

// Header implements http.ResponseWriter.
func (h *hijackable) Header() http.Header { return h.header }

// WriteHeader implements http.ResponseWriter.
func (h *hijackable) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (h *hijackable) Write(b []byte) (int, error) { return len(b), nil }

// heard records that the runtime is alive. It returns whether the socket is closing.
func (s *runtimeSocket) heard() (closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead = time.Now()
	return s.closing
}

func (s *runtimeSocket) heartbeat() {
	s.mu.Lock()
	closing, silent := s.closing, time.Since(s.lastRead) >= 2*runtimeapi.PingInterval
	s.mu.Unlock()
	switch {
	case closing:
	case silent:
		s.Close(channel.CloseNoPong)
	default:
		_ = s.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.timer.Reset(runtimeapi.PingInterval)
	}
}

// abandon ends the socket of a crashed process.
func (s *runtimeSocket) abandon(silent bool) {
	s.link.down.cut()
	if !silent {
		s.link.up.end()
	}
	s.link.up.cutSender()
	s.link.fail(errReset)
}

// drain announces the end of the process, and ends the socket a little later.
func (s *runtimeSocket) drain() {
	const window = time.Second
	s.process.instance.world.running.Go(func() {
		if s.started() {
			s.channel.Drain(window)
		}
		select {
		case <-time.After(window):
			s.Close(channel.CloseRestart)
		case <-s.ended:
		}
	})
}

// started reports whether the handshake is complete.
func (s *runtimeSocket) started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timer != nil
}

// Send implements channel.Socket. Writes never block here.
func (s *runtimeSocket) Send(frames ...[]byte) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	for _, f := range frames {
		_ = s.ws.WriteMessage(websocket.TextMessage, f) // fails if the connection is gone, which read notices
	}
	return true
}

// AfterWrites implements channel.Socket.
func (s *runtimeSocket) AfterWrites(f func()) {
	s.mu.Lock()
	open := !s.closing
	s.mu.Unlock()
	if open {
		f()
	}
}

// SendAudio implements channel.Socket.
func (s *runtimeSocket) SendAudio(frame []byte) { s.Send(frame) }

// closeTimeout is how long a closing socket waits for its peer.
const closeTimeout = 2 * time.Second

// Close implements channel.Socket.
func (s *runtimeSocket) Close(code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	if s.ws == nil { // in the handshake
		s.link.fail(net.ErrClosed)
		return
	}
	_ = s.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(int(code), ""), time.Now().Add(closeTimeout))
	_ = s.ws.SetReadDeadline(time.Now().Add(closeTimeout))
}
