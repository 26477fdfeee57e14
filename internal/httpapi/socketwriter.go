package httpapi

import (
	"errors"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

// writeBatchBytes is about how many bytes are passed to the kernel in one write.
const writeBatchBytes = 16 << 10

// sendQueue holds the frames that wait to be written.
type sendQueue struct {
	frames []queuedFrame
	bytes  int64 // of the counted frames that are queued or being written
}

type queuedFrame struct {
	frame   []byte
	counted int64 // its length; 0 for replayed history
}

func (q *sendQueue) add(counted bool, frames ...[]byte) {
	for _, frame := range frames {
		f := queuedFrame{frame: frame}
		if counted {
			f.counted = int64(len(frame))
		}
		q.frames = append(q.frames, f)
		q.bytes += f.counted
	}
}

// next removes the frames of the next write from the queue. They remain in
// q.bytes: the caller subtracts counted when they are written.
func (q *sendQueue) next() (batch []queuedFrame, counted int64) {
	n, bytes := 0, 0
	for n < len(q.frames) && bytes < writeBatchBytes {
		bytes += len(q.frames[n].frame)
		counted += q.frames[n].counted
		n++
	}
	batch, q.frames = q.frames[:n:n], q.frames[n:]
	if len(q.frames) == 0 {
		q.frames = nil
	}
	return batch, counted
}

// Send implements channel.Socket.
func (s *socket) Send(frames ...[]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return true
	}
	added := int64(0)
	for _, frame := range frames {
		added += int64(len(frame))
	}
	if s.queue.bytes+added > s.limits.QueuedBytes {
		return false
	}
	s.queue.add(true, frames...)
	s.startWriter()
	return true
}

// Replay implements channel.Socket.
func (s *socket) Replay(frames [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == 0 && len(frames) > 0 {
		s.queue.add(false, frames...)
		s.startWriter()
	}
}

// SendAudio implements channel.Socket. It drops the frame if the queue is half
// full.
func (s *socket) SendAudio(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return
	}
	if s.queue.bytes+int64(len(frame)) > s.limits.QueuedBytes/2 {
		s.set.dropped.Inc()
		return
	}
	s.queue.add(true, frame)
	s.startWriter()
}

// sendControl queues a ping or a pong; a newer one of the same kind replaces it.
// It is sent by the writer: a concurrent write would set its own short deadline
// for a message that a slow reader is still receiving.
func (s *socket) sendControl(kind int, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return
	}
	if s.control == nil {
		s.control = map[int][]byte{}
	}
	s.control[kind] = data
	s.startWriter()
}

// discard empties the queue. The caller holds mu.
func (s *socket) discard() { s.queue.frames, s.control = nil, nil }

// startWriter starts the writer unless it runs. The caller holds mu and knows
// that the socket has not ended.
func (s *socket) startWriter() {
	if !s.writing {
		s.writing = true
		s.set.running.Go(s.write)
	}
}

// write sends all queued frames, then the close frame if the socket is closing.
func (s *socket) write() {
	var written int64
	for {
		s.mu.Lock()
		s.queue.bytes -= written
		var batch []queuedFrame
		batch, written = s.queue.next()
		control, code := s.control, s.closing
		s.control = nil
		s.writing = len(batch) > 0 || control != nil
		s.mu.Unlock()
		if len(batch) == 0 && control == nil {
			if code != 0 {
				s.sendClose(code)
			}
			return
		}
		if err := s.writeBatch(batch, control); err != nil {
			_ = s.ws.Close() // the reader then ends the socket
			return
		}
	}
}

func (s *socket) writeBatch(batch []queuedFrame, control map[int][]byte) (err error) {
	deadline := time.Now().Add(socketWriteTimeout)
	_ = s.ws.SetWriteDeadline(deadline)
	s.conn.beginBatch()
	for kind, data := range control {
		err = errors.Join(err, s.ws.WriteControl(kind, data, deadline))
	}
	for _, q := range batch {
		err = errors.Join(err, s.ws.WriteMessage(websocket.TextMessage, q.frame))
	}
	return errors.Join(err, s.conn.flushBatch())
}

// sendClose sends the close frame and waits a moment for the peer's answer.
func (s *socket) sendClose(code channel.CloseCode) {
	message := websocket.FormatCloseMessage(int(code), code.Reason())
	if err := s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeTimeout)); err != nil {
		_ = s.ws.Close()
		return
	}
	_ = s.ws.SetReadDeadline(time.Now().Add(closeTimeout))
}
