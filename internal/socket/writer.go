package socket

import (
	"errors"
	"os"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

const (
	// writeBatchBytes is the approximate size of a batch, which is one system call.
	writeBatchBytes = 16 << 10
	// QueueBudget is the memory for the queues of all sockets. A queue of up to
	// writeBatchBytes needs none of it, since most clients read fast.
	QueueBudget = 256 << 20
	// maxQueuedAudio bounds the queue of a socket if audio is added: late audio is useless.
	maxQueuedAudio = 1 << 20
)

// sendQueue holds the frames that wait for the writer of a socket.
type sendQueue struct {
	frames [][]byte
	bytes  int64 // of the frames that are queued or being written
	taken  int64 // bytes of QueueBudget, a multiple of writeBatchBytes
}

// next removes the frames of the next write from the queue. They remain in
// q.bytes: the caller subtracts their size when they are written.
func (q *sendQueue) next() (batch [][]byte, size int64) {
	n := 0
	for n < len(q.frames) && size < writeBatchBytes {
		size += int64(len(q.frames[n]))
		n++
	}
	batch, q.frames = q.frames[:n:n], q.frames[n:]
	if len(q.frames) == 0 {
		q.frames = nil
	}
	return batch, size
}

// Send implements channel.Socket.
func (s *socket) Send(frames ...[]byte) bool { return s.enqueue(s.Limits.QueuedBytes, frames...) }

// AfterWrites implements channel.Socket.
func (s *socket) AfterWrites(f func()) {
	s.mu.Lock()
	idle := s.closing == 0 && !s.writing
	if !idle {
		s.afterWrites = f
	}
	s.mu.Unlock()
	if idle {
		f()
	}
}

// SendAudio implements channel.Socket. It drops the frame if the queue is half
// full, or has maxQueuedAudio.
func (s *socket) SendAudio(frame []byte) {
	if !s.enqueue(min(s.Limits.QueuedBytes/2, maxQueuedAudio), frame) {
		s.set.dropped.Inc()
	}
}

// enqueue queues frames for the writer. It returns false if the queue would exceed the
// limit or the holder's share of QueueBudget. A socket that is closing discards them.
func (s *socket) enqueue(limit int64, frames ...[]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 || len(frames) == 0 {
		return true
	}
	queue := s.queue
	for _, frame := range frames {
		queue.frames = append(queue.frames, frame)
		queue.bytes += int64(len(frame))
	}
	if queue.bytes > limit && s.queue.bytes > 0 { // the largest message always fits into an empty queue
		return false
	}
	beyondBatch := (queue.bytes - 1) / writeBatchBytes * writeBatchBytes // taken in steps of a batch
	if more := beyondBatch - queue.taken; more > 0 {
		if s.set.queued.Take(s.Holder, more) != nil {
			return false
		}
		queue.taken += more
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
func (s *socket) discard() {
	s.queue.frames, s.control, s.afterWrites = nil, nil, nil
	s.returnQueue()
}

// returnQueue returns the memory of the queue to the budget. The caller holds mu.
func (s *socket) returnQueue() {
	if s.queue.taken > 0 {
		s.set.queued.Return(s.Holder, s.queue.taken)
		s.queue.taken = 0
	}
}

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
	var written int64 // bytes of the last batch
	for {
		s.mu.Lock()
		if s.queue.bytes -= written; s.queue.bytes == 0 {
			s.returnQueue()
		}
		var batch [][]byte
		batch, written = s.queue.next()
		control, code, afterWrites := s.control, s.closing, s.afterWrites
		s.control = nil
		done := len(batch) == 0 && control == nil
		if done {
			s.writing, s.afterWrites = false, nil
		}
		s.recordProgress()
		s.mu.Unlock()
		if done {
			switch {
			case code != 0:
				s.sendClose(code)
			case afterWrites != nil:
				afterWrites()
			}
			return
		}
		if err := s.writeBatch(batch, control); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.markClosed(channel.CloseSlowReader)
			}
			_ = s.ws.Close() // the reader then ends the socket
			return
		}
	}
}

func (s *socket) writeBatch(batch [][]byte, control map[int][]byte) (err error) {
	deadline := time.Now().Add(socketWriteTimeout)
	_ = s.ws.SetWriteDeadline(deadline)
	s.netConn.beginBatch()
	for kind, data := range control {
		err = errors.Join(err, s.ws.WriteControl(kind, data, deadline))
	}
	for _, frame := range batch {
		err = errors.Join(err, s.ws.WriteMessage(websocket.TextMessage, frame))
	}
	return errors.Join(err, s.netConn.flushBatch())
}

// sendClose sends the close frame. The reader waits up to closeTimeout for the
// peer's close frame.
func (s *socket) sendClose(code channel.CloseCode) {
	message := websocket.FormatCloseMessage(int(code), code.Reason())
	s.netConn.beginBatch()
	err := s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeTimeout))
	if err = errors.Join(err, s.netConn.flushBatch()); err != nil {
		_ = s.ws.Close()
		return
	}
	_ = s.ws.SetReadDeadline(time.Now().Add(closeTimeout))
}
