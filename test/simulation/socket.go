package simulation

import (
	"bytes"
	"context"
	"sync"
	"time"

	"telapi/internal/channel"
	"telapi/internal/fault"
)

// wireConn is a connection between a browser and an instance.
type wireConn struct {
	up, down *pipe // up: towards the instance
	number   int
}

// Notes on a browser's socket.
type (
	pingNote  struct{} // of the WebSocket protocol
	pongNote  struct{} // its answer
	closeNote struct{ code channel.CloseCode }
	rejection struct{ code fault.Code } // of a handshake
)

// serverSocket is the instance's end of a browser's connection. It does what
// the socket of internal/httpapi does, without HTTP.
type serverSocket struct {
	process *serviceProcess
	conn    *wireConn
	channel *channel.Connection
	inbox   *mailbox[chunk]
	ended   chan struct{}

	mu       sync.Mutex
	timer    *time.Timer
	closing  channel.CloseCode
	lastRead time.Time
	gone     chan struct{} // closed when the peer or the process is gone
	isGone   bool
}

// serve handles a handshake and then the socket.
func (p *serviceProcess) serve(conn *wireConn, record *channelRecord, info channel.SessionInfo, succeeds, resume string) *serverSocket {
	s := &serverSocket{process: p, conn: conn, inbox: newMailbox[chunk](), ended: make(chan struct{}), gone: make(chan struct{})}
	if !p.add(s) {
		conn.down.end()
		close(s.ended)
		return s
	}
	p.instance.world.running.Go(func() { s.run(record, info, succeeds, resume) })
	return s
}

func (s *serverSocket) run(record *channelRecord, info channel.SessionInfo, succeeds, resume string) {
	defer close(s.ended)
	ctx, cancel := context.WithCancel(s.process.ctx)
	defer cancel()
	go func() { // the request ends with its client
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	record.handshakeStarted(s.process.host)
	opened, err := s.open(ctx, info, succeeds, resume)
	record.handshakeEnded(s.process.host)
	if err != nil {
		s.conn.down.notify(rejection{fault.From(err).Code})
		s.conn.down.end()
		return
	}
	s.channel = opened
	s.mu.Lock()
	s.lastRead = time.Now()
	s.timer = time.AfterFunc(opened.UntilHeartbeat(), s.heartbeat)
	s.mu.Unlock()
	opened.Start(s)
	s.read()
	s.mu.Lock()
	s.timer.Stop()
	if s.closing == 0 {
		s.closing = channel.CloseNormal
	}
	s.mu.Unlock()
	opened.Close()
	s.conn.down.end()
}

// open opens the channel of a session unless that was deleted.
func (s *serverSocket) open(ctx context.Context, info channel.SessionInfo, succeeds, resume string) (*channel.Connection, error) {
	if s.process.instance.world.deletion {
		found, err := s.process.sessions.Store.Session(ctx, info.SessionID)
		if err != nil {
			return nil, err
		}
		if found.EndedAs != "" {
			return nil, fault.New(fault.SessionEnded, "deleted")
		}
	}
	return s.process.channels.Open(ctx, info, succeeds, resume)
}

// read handles the browser's frames until the connection ends.
func (s *serverSocket) read() {
	ctx := s.process.ctx
	for {
		part, ok := s.inbox.take()
		if !ok {
			s.channel.Flush(ctx)
			if part, ok = s.inbox.wait(s.closeDeadline(), s.gone); !ok {
				s.channel.Flush(ctx)
				if s.over() {
					return
				}
				continue
			}
		}
		if part.eof {
			s.channel.Flush(ctx)
			return
		}
		s.mu.Lock()
		s.lastRead = time.Now()
		closing := s.closing != 0
		s.mu.Unlock()
		if part.data != nil && !closing {
			s.channel.Handle(ctx, part.data)
		}
	}
}

// closeDeadline returns until when a closing socket waits for its peer.
func (s *serverSocket) closeDeadline() time.Time { return time.Now().Add(2 * time.Second) }

func (s *serverSocket) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isGone || s.closing != 0
}

// feed takes chunks from the browser.
func (s *serverSocket) feed(part chunk) { s.inbox.put(part) }

func (s *serverSocket) heartbeat() {
	s.mu.Lock()
	silent := time.Since(s.lastRead) >= 2*s.process.instance.world.ping
	if s.closing != 0 || s.isGone {
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if silent {
		s.Close(channel.CloseNoPong)
		return
	}
	s.conn.down.notify(pingNote{})
	ctx, cancel := context.WithTimeout(s.process.ctx, 5*time.Second)
	defer cancel()
	s.channel.Heartbeat(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Reset(s.channel.UntilHeartbeat())
}

// abandon ends the socket of a crashed process.
func (s *serverSocket) abandon(silent bool) {
	s.mu.Lock()
	if !s.isGone {
		s.isGone = true
		close(s.gone)
	}
	s.mu.Unlock()
	s.conn.up.cut()
	if !silent {
		s.conn.down.end()
	}
	s.conn.down.cutSender()
}

// Send implements channel.Socket.
func (s *serverSocket) Send(frames ...[]byte) bool {
	for _, f := range frames {
		s.conn.down.send(bytes.Clone(f))
	}
	return true
}

// AfterWrites implements channel.Socket. Writes never block here.
func (s *serverSocket) AfterWrites(f func()) {
	s.mu.Lock()
	open := s.closing == 0
	s.mu.Unlock()
	if open {
		f()
	}
}

// SendAudio implements channel.Socket.
func (s *serverSocket) SendAudio(frame []byte) { s.Send(frame) }

// Close implements channel.Socket.
func (s *serverSocket) Close(code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return
	}
	s.closing = code
	s.conn.down.notify(closeNote{code})
	// The reader waits for the peer's answer for a moment.
	s.inbox.put(chunk{note: closeNote{code}})
}

// hangup cancels a handshake whose client has gone.
func (s *serverSocket) hangup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channel == nil && !s.isGone {
		s.isGone = true
		close(s.gone)
	}
}
