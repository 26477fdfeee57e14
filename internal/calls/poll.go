package calls

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// Delivery is one received entry.
type Delivery struct {
	// Position is passed to Commit once the entry is handled. It is empty for
	// audio frames.
	Position string
	Entry    wire.Entry     // not set by Poll
	JSON     jsontext.Value // the entry; from Poll as stored on the stream, see CutItem
}

// Watcher is notified of what happens on a claimed channel, so that an idle channel needs
// no goroutine. Its methods must not block.
type Watcher interface {
	// Wake is called when Poll may return entries or an error.
	Wake()
	// Audio is called with an audio frame of the browser, a ChannelMessage as JSON.
	Audio(message string)
}

// Poll returns the next entries of the stream in order, at most the given number and bytes;
// with force it returns one that is larger. The caller calls it again after the returned
// time, or earlier if the watcher is called. Only one Poll may run at a time. Poll renews the
// claim and times out work items.
//
// Poll fails with ErrClaimLost if another runtime has claimed the channel, with ErrLost if
// the store has lost the channel or entries that Poll returned before, and with ErrClosed
// after Close.
func (c *Channel) Poll(ctx context.Context, entries int, bytes int64, force bool) (found []Delivery, again time.Duration, err error) {
	if c.ctx.Err() != nil {
		return nil, 0, context.Cause(c.ctx)
	}
	renewIn, err := c.keepClaim(ctx)
	if err != nil {
		return nil, 0, err
	}
	due, err := c.touch(ctx)
	if err != nil {
		return nil, 0, err
	}
	again = min(time.Until(due), renewIn)
	newest := c.newestEntry.Load()
	list := c.kept.take(c.position)
	if entries <= 0 || *newest == c.position {
		return nil, again, nil
	}
	readAll := false // entries that are on the stream
	if len(list) == 0 {
		if list, err = c.read(ctx, entries); err != nil {
			return nil, 0, err
		}
		readAll = len(list) < entries
	}
	list = list[:min(len(list), entries)] // the rest is read again
	for i, d := range list {
		if bytes -= int64(len(d.JSON)); bytes < 0 && (i > 0 || !force) {
			return list[:i], again, nil // the caller calls again when it can take more
		}
		c.position = d.Position
	}
	if readAll {
		c.newestEntry.CompareAndSwap(newest, new(c.position)) // unless a notice has arrived since
	}
	if *c.newestEntry.Load() != c.position {
		again = 0
	}
	return list, again, nil
}

// keepClaim renews the claim if a third of its lease has passed. It returns the time until
// the next renewal.
func (c *Channel) keepClaim(ctx context.Context) (time.Duration, error) {
	third := c.runtime.opts.Lease / 3
	if c.token == "" {
		return third, nil // an observer
	}
	if c.checkNow.Swap(false) || time.Until(*c.claimedUntil.Load()) <= 2*third {
		if err := c.renewClaim(ctx); err != nil {
			return 0, err
		}
	}
	return time.Until(*c.claimedUntil.Load()) - 2*third, nil
}

// read returns the entries after the position, which was read before. If the entry at the
// position is missing, the store has lost its newest entries.
func (c *Channel) read(ctx context.Context, count int) ([]Delivery, error) {
	if c.position == "" {
		return c.runtime.read(ctx, c.stream, "", count)
	}
	found, err := c.runtime.read(ctx, c.stream, c.position, count+1)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the stream: %w", err)
	case len(found) > 0 && found[0].Position == c.position:
		return found[1:], nil
	case c.token != "":
		_ = c.renewClaim(ctx) // reports the loss
		return nil, ErrLost
	}
	return found, nil
}

// CheckEntry fails with ErrLost if the store does not have an entry that was not removed.
func (c *Channel) CheckEntry(ctx context.Context, position string) error {
	found, err := c.runtime.read(ctx, c.stream, position, 1)
	if err == nil && (len(found) == 0 || found[0].Position != position) {
		err = ErrLost
	}
	return err
}

// touch runs the script touch if a deadline of the channel may have passed, and returns when to call
// it again. If nobody polls, the next script on the channel times out work items.
func (c *Channel) touch(ctx context.Context) (due time.Time, err error) {
	known := c.due.Load()
	if known != nil && time.Now().Before(*known) {
		return *known, nil
	}
	ms, err := c.run(ctx, "touch").AsInt64()
	if err != nil {
		return due, wrap("apply expired deadlines", err)
	}
	c.drained = ms == touchDrained
	next := c.dueIn(ms)
	c.due.CompareAndSwap(known, next) // unless a notice has arrived since
	return *next, nil
}

// touchDrained is the reply of the script touch on an ended channel without uncommitted
// entries.
const touchDrained = -2

// touchWithin is TOUCH_WITHIN of the scripts: there is no notice of a later deadline.
const touchWithin = 20 * time.Second

// dueIn returns the local time ms milliseconds from now, at most touchWithin and a third of
// the lease from now, since notices can be lost. A negative ms means unknown. The store sends
// durations, so that its clock and the local one need not agree.
func (c *Channel) dueIn(ms int64) *time.Time {
	longest := min(c.runtime.opts.Lease/3, touchWithin)
	after := time.Duration(ms) * time.Millisecond
	if ms < 0 || after > longest {
		after = longest
	}
	return new(time.Now().Add(after))
}

// parseWait returns a number of milliseconds, or -1 if there is none.
func parseWait(text string) int64 {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return ms
}

// Check makes the next Poll check whether another runtime has the claim.
func (c *Channel) Check() {
	c.checkNow.Store(true)
	c.watcher.Wake()
}

// Ended reports whether the last entry is committed.
func (c *Channel) Ended() bool { return errors.Is(context.Cause(c.ctx), ErrEnded) }

// subscriber receives the notices of a channel's topic. Entries whose notices were
// lost are found by the next read; lost audio is not repeated.
type subscriber struct{ *Channel }

func (c subscriber) Down(error) {}

func (c subscriber) Up() {
	c.due.Store(nil)
	c.readAgain()
	c.watcher.Wake()
}

// readAgain makes the next Poll read the stream. A Poll that runs now may have read it before
// an entry was added: it does not replace the value, because each has another pointer.
func (c *Channel) readAgain() { c.newestEntry.Store(new("?")) }

// Message handles a notice: audio, another claim, new entries, or the time until the next
// deadline.
func (c subscriber) Message(payload string) {
	var notice kv.Notice
	if payload != "" {
		notice = kv.Notice(payload[0])
	}
	switch notice {
	case kv.NoticeAudio:
		c.watcher.Audio(payload[1:])
		return
	case kv.NoticeClaimed:
		if payload[1:] == c.token {
			return
		}
		c.checkNow.Store(true)
	case kv.NoticeEntry:
		head, entries, _ := strings.Cut(payload[1:], "\n")
		before, rest, _ := strings.Cut(head, " ")
		last, wait, _ := strings.Cut(rest, " ")
		last = strings.Clone(last) // without the entries
		c.kept.add(keptNotice{before, last, entries})
		c.newestEntry.Store(&last)
		c.due.Store(c.dueIn(parseWait(wait)))
	case kv.NoticeDue:
		c.due.Store(c.dueIn(parseWait(payload[1:])))
	default: // of the browser's topic
		c.readAgain()
	}
	c.watcher.Wake()
}

const (
	maxAudio  = 256 // audio frames that wait for Receive; more are dropped
	readBatch = 128 // entries that Receive reads at once
)

// inbox is the watcher of a channel that Receive reads.
type inbox struct {
	changed chan struct{} // holds a value if Poll may return entries
	audio   chan string
	unread  []Delivery
	ended   bool // Receive has returned the last entry
}

func (i *inbox) Wake() {
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

func (i *inbox) Audio(message string) {
	select {
	case i.audio <- message:
	default:
	}
}

// Receive waits for the next entry or audio frame. Its errors are those of Poll, and
// ErrEnded after the last entry. If an entry cannot be decoded, Receive returns its position
// with the error; the next call continues after it. Only one Receive may run at a time. The
// claim is renewed while Receive runs.
func (c *Channel) Receive(ctx context.Context) (Delivery, error) {
	in := c.inbox
	for len(in.unread) == 0 {
		found, again, err := c.Poll(ctx, readBatch, math.MaxInt64, true)
		switch {
		case c.ctx.Err() != nil:
			return Delivery{}, context.Cause(c.ctx)
		case err != nil:
			return Delivery{}, err
		case len(found) > 0:
			in.unread = found
			continue
		case in.ended || c.drained:
			return Delivery{}, ErrEnded
		}
		select {
		case <-in.changed:
		case audio := <-in.audio:
			return c.decode(Delivery{JSON: fmt.Appendf(nil, `{"kind":"frame","channelId":%q,"message":%s}`, c.ID, audio)})
		case <-time.After(again):
		case <-c.ctx.Done():
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		}
	}
	d := in.unread[0]
	in.unread = in.unread[1:]
	return c.decode(d)
}

func (c *Channel) decode(d Delivery) (Delivery, error) {
	if err := d.decode(); err != nil {
		return d, fmt.Errorf("decode entry %s: %w", d.Position, err)
	}
	if d.Entry.Kind == wire.KindChannelEnded {
		c.inbox.ended = true
	}
	if m := d.Entry.Message; m != nil && d.Position == "" {
		d.Entry.At = m.Timestamp
	}
	return d, nil
}
