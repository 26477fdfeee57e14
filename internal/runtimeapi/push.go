package runtimeapi

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/redact"
)

const (
	maxWorkers  = 16              // goroutines of a connection that push entries
	pollBatch   = 32              // entries read at once
	pollTimeout = 2 * time.Second // of one read
	pollRetry   = 500 * time.Millisecond
)

// endPrefix is how the last entry of a channel starts.
var endPrefix = []byte(`{"kind":"` + wire.KindChannelEnded + `"`)

// Wake implements calls.Watcher: it makes a worker push entries.
func (cl *claim) Wake() {
	c := cl.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.claims[cl.id] != cl:
	case cl.working:
		cl.woken = true
	case !cl.queued:
		c.makeReady(cl)
	}
}

// makeReady queues a claim for a worker. The caller holds mu.
func (c *Conn) makeReady(cl *claim) {
	cl.queued = true
	c.ready = append(c.ready, cl)
	if c.workers < maxWorkers {
		c.workers++
		c.running.Go(c.pushReady)
	}
}

// Audio implements calls.Watcher.
func (cl *claim) Audio(message string) {
	cl.mu.Lock()
	ok := cl.started && !cl.stopped
	cl.mu.Unlock()
	cl.conn.mu.Lock()
	stalled := len(cl.conn.stalled) > 0 // entries come first
	cl.conn.mu.Unlock()
	switch {
	case ok && stalled:
		cl.conn.service.audioDropped.Inc()
	case ok:
		cl.conn.socket.SendAudio([]byte(`{"event":"audio","channel":"` + cl.id + `","message":` + message + `}`))
	}
}

// pushReady pushes the entries of claims that are ready until there are none.
func (c *Conn) pushReady() {
	for {
		c.mu.Lock()
		if len(c.ready) == 0 || c.closed {
			c.workers--
			c.mu.Unlock()
			return
		}
		cl := c.ready[0]
		c.ready = c.ready[1:]
		cl.queued, cl.woken = false, false
		if c.unsent > pauseBytes {
			c.stalled = append(c.stalled, cl)
			c.mu.Unlock()
			c.socket.AfterWrites(c.resumePushes)
			continue
		}
		cl.working = true
		c.mu.Unlock()

		again := cl.pushEntries()

		c.mu.Lock()
		cl.working = false
		switch {
		case c.closed || c.claims[cl.id] != cl:
		case cl.woken || again <= 0:
			c.makeReady(cl)
		default:
			cl.timer.Reset(again)
		}
		c.mu.Unlock()
	}
}

// resumePushes continues when the socket has sent everything.
func (c *Conn) resumePushes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = 0
	if c.closed {
		return
	}
	for _, cl := range c.stalled {
		if !cl.queued && !cl.working {
			c.makeReady(cl)
		}
	}
	c.stalled = nil
}

// pushEntries pushes entries as far as uncommitted ones allow. It returns the time after
// which to call it again.
func (cl *claim) pushEntries() (again time.Duration) {
	cl.mu.Lock()
	ch, entries, bytesLeft := cl.channel, pushedEntries-len(cl.pushed), pushedBytes-cl.bytes
	active := cl.started && !cl.stopped
	allCommitted := len(cl.pushed) == 0 // then one entry may exceed bytesLeft
	cl.mu.Unlock()
	if !active {
		return time.Hour // start calls Wake
	}
	ctx, cancel := context.WithTimeout(cl.conn.ctx, pollTimeout)
	defer cancel()
	found, again, err := ch.Poll(ctx, min(entries, pollBatch), bytesLeft, allCommitted)
	if err != nil {
		if cl.recoverFrom(ch, err) == nil {
			return 0
		}
		return pollRetry
	}
	cl.mu.Lock()
	if cl.channel != ch || cl.stopped { // claimed again meanwhile
		cl.mu.Unlock()
		return 0
	}
	sent := int64(0)
	for _, d := range found {
		size, number := int64(len(d.JSON)), wire.EntryNumber(d.Position)
		if number <= cl.committed {
			continue // the runtime has it from an earlier connection
		}
		if number > wire.EntryNumber(cl.known) {
			cl.known = d.Position
		}
		cl.pushed = append(cl.pushed, pushedEntry{number, size})
		cl.ended = cl.ended || bytes.HasPrefix(d.JSON, endPrefix)
		cl.bytes += size
		frame := make([]byte, 0, len(d.JSON)+len(cl.id)+100) // fmt would copy the entry three times
		frame = fmt.Appendf(frame, `{"event":"entry","channel":%q,"position":%q,"entry":`, cl.id, d.Position)
		frame = cl.appendEntry(frame, ch, d.JSON)
		cl.conn.write(frame)
		sent += int64(len(frame))
	}
	cl.mu.Unlock()
	cl.conn.mu.Lock()
	cl.conn.unsent += sent
	cl.conn.mu.Unlock()
	return again
}

// appendEntry appends an entry and the end of its push. The work item that was registered with a
// chat frame comes beside the entry. If no secret is that of the item, the item is left out.
func (cl *claim) appendEntry(push []byte, ch *calls.Channel, entry []byte) []byte {
	members, found := calls.CutItem(entry)
	if !found {
		return append(append(push, entry...), '}')
	}
	var frame struct {
		Item struct {
			WorkItemID   string            `json:"workItemId"`
			WorkItemKind wire.WorkItemKind `json:"workItemKind"`
			Deadline     int64             `json:"deadline"`
			Digest       string            `json:"digest"` // the start of it
		} `json:"item"`
		Trace wire.Trace `json:"trace"`
	}
	_ = json.Unmarshal(entry, &frame) // the script frame has written it
	item := frame.Item
	push = append(append(push, '{'), members...)
	for _, key := range []redact.Secret{cl.conn.service.Secrets.Current, cl.conn.service.Secrets.Previous} {
		token, digest := auth.CallbackToken(key, ch.TeamID, ch.ID, item.WorkItemID, wire.ScopeItem)
		if strings.HasPrefix(digest, item.Digest) {
			url := cl.conn.params.BaseURL + calls.CallbackPath(item.WorkItemKind, ch.ID, item.WorkItemID, frame.Trace)
			awaited, _ := json.Marshal(wire.Awaited{WorkItemID: item.WorkItemID, Token: token, URL: url, Deadline: item.Deadline}) // of plain types
			push = append(append(push, `,"workItem":`...), awaited...)
			break
		}
	}
	return append(push, '}')
}
