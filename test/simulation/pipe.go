package simulation

import (
	"sync"
	"time"
)

// pipe is one direction of a connection. It delivers chunks in order, each after a
// random delay. A chunk arrives even if the sender has closed the connection, unless
// the pipe is cut.
type pipe struct {
	key     uint64 // seed of the delays
	side    direction
	path    *host // has the network faults of the connection
	link    *link // has further faults of the connection; nil for that of a browser
	deliver func(chunk)

	mu      sync.Mutex
	queue   []chunk
	newest  time.Time // when the last chunk of the queue is due
	timer   *time.Timer
	closed  bool // nothing can be sent any more
	working bool // deliver is running
}

// chunk is the data of one write, a note or the end of the connection.
type chunk struct {
	data []byte
	note any  // an event of a browser's socket other than a frame, such as its close
	eof  bool // the sender has closed its end
	sent time.Time
	due  time.Time
}

func newPipe(path *host, side direction, number int, deliver func(chunk)) *pipe {
	return &pipe{key: path.world.key("pipe", path.name, side, number), side: side, path: path, deliver: deliver}
}

// send queues bytes. It returns false after end and cut.
func (p *pipe) send(data []byte) bool { return p.put(chunk{data: data}) }

// notify queues a note.
func (p *pipe) notify(note any) bool { return p.put(chunk{note: note}) }

// end closes the connection after all queued chunks are delivered.
func (p *pipe) end() {
	p.put(chunk{eof: true})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// cutSender makes further sends fail. Queued chunks are still delivered.
func (p *pipe) cutSender() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// cut drops everything that was not delivered yet.
func (p *pipe) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (p *pipe) put(c chunk) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	c.sent = time.Now()
	random := mix(p.key, c.sent)
	c.due = c.sent.Add(p.path.delay(random))
	if !c.due.After(p.newest) {
		c.due = p.newest.Add(time.Duration(1 + random%1000))
	}
	p.newest = c.due
	p.queue = append(p.queue, c)
	if len(p.queue) == 1 && !p.working {
		p.arm()
	}
	return true
}

// arm starts the timer for the first chunk. The caller holds mu.
func (p *pipe) arm() {
	if len(p.queue) == 0 {
		return
	}
	at := p.queue[0].due
	if held := p.heldUntil(); held.After(at) {
		at = held
	}
	p.timer = time.AfterFunc(time.Until(at), p.run)
}

func (p *pipe) heldUntil() time.Time {
	held := p.path.heldUntil(p.side)
	if p.link != nil {
		if own := p.link.heldUntil(p.side); own.After(held) {
			return own
		}
	}
	return held
}

// run delivers the chunks that are due.
func (p *pipe) run() {
	p.mu.Lock()
	if p.working {
		p.mu.Unlock()
		return
	}
	p.working = true
	for len(p.queue) > 0 {
		now, first := time.Now(), p.queue[0]
		if first.due.After(now) || p.heldUntil().After(now) {
			break
		}
		p.queue = p.queue[1:]
		p.mu.Unlock()
		p.deliver(first)
		p.mu.Lock()
	}
	p.working = false
	p.arm()
	p.mu.Unlock()
}
