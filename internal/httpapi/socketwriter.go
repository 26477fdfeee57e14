package httpapi

import (
	"errors"
	"math"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

// writeBatchBytes is the approximate size of a batch, which is one system call.
const writeBatchBytes = 16 << 10

// sendQueue holds the frames that wait for the writer of a socket.
type sendQueue struct {
	frames []queuedFrame
	bytes  int64 // of the counted frames that are queued or being written
}

type queuedFrame struct {
	frame   []byte
	counted int64 // length that counts toward QueuedBytes; 0 for replayed history
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
func (s *socket) Send(frames ...[]byte) bool { return s.enqueue(s.limits.QueuedBytes, frames...) }

// Replay implements channel.Socket.
func (s *socket) Replay(frames [][]byte) { s.enqueue(unlimited, frames...) }

// SendAudio implements channel.Socket. It drops the frame if the queue is half
// full.
func (s *socket) SendAudio(frame []byte) {
	if !s.enqueue(s.limits.QueuedBytes/2, frame) {
		s.set.dropped.Inc()
	}
}

// unlimited disables the limit of enqueue. Frames queued with it do not count toward
// QueuedBytes.
const unlimited = math.MaxInt64

// enqueue queues frames for the writer. It returns false if the queue would
// exceed the limit. A socket that is closing discards them.
func (s *socket) enqueue(limit int64, frames ...[]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 || len(frames) == 0 {
		return true
	}
	queue := s.queue
	for _, frame := range frames {
		f := queuedFrame{frame: frame}
		if limit != unlimited {
			f.counted = int64(len(frame))
		}
		queue.frames = append(queue.frames, f)
		queue.bytes += f.counted
	}
	if queue.bytes > limit {
		return false
	}
	s.queue = queue
	s.startWriter()
	return true
}

// sendControl queues a ping or a pong. It replaces a queued one of the same kind.
// Only the writer writes: a concurrent write would replace the deadline of a message
// that a slow client is still receiving.
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

// startWriter starts the writer unless it is running. The caller holds mu and has
// checked that the socket has not ended.
func (s *socket) startWriter() {
	if !s.writing {
		s.writing = true
		s.set.running.Go(s.write)
	}
}

// write sends all queued frames, then the close frame if the socket is closing.
func (s *socket) write() {
	var written int64 // counted bytes of the last batch
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
	for _, queued := range batch {
		err = errors.Join(err, s.ws.WriteMessage(websocket.TextMessage, queued.frame))
	}
	return errors.Join(err, s.conn.flushBatch())
}

// sendClose sends the close frame. The reader waits up to closeTimeout for the
// peer's close frame.
func (s *socket) sendClose(code channel.CloseCode) {
	message := websocket.FormatCloseMessage(int(code), code.Reason())
	if err := s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeTimeout)); err != nil {
		_ = s.ws.Close()
		return
	}
	_ = s.ws.SetReadDeadline(time.Now().Add(closeTimeout))
}
