package calls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

const (
	maxAudio     = 256             // audio frames that wait for Receive; more are dropped
	readBatch    = 128             // entries read at once
	pollInterval = 5 * time.Second // time between two reads if no notice arrives, since a notice can be lost
)

// Delivery is one received entry.
type Delivery struct {
	// Position is passed to Commit once the entry is handled. It is empty for
	// audio frames.
	Position string
	Entry    wire.Entry
	JSON     jsontext.Value // the entry as stored on the stream
}

// Receive waits for the next entry. It returns the entries of the stream in order,
// and audio frames as they arrive. Audio does not delay entries: it is returned
// only when no entry is known to be waiting.
//
// Receive fails with ErrEnded after the last entry, with ErrClaimLost if another
// runtime has claimed the channel, with ErrLost if the store has lost the channel or
// entries that Receive returned before, and with ErrClosed after Close. If an entry
// cannot be decoded, Receive returns its position with the error; the next call
// continues after it.
func (c *Channel) Receive(ctx context.Context) (Delivery, error) {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-c.ctx.Done():
		return Delivery{}, context.Cause(c.ctx)
	case <-ctx.Done():
		return Delivery{}, ctx.Err()
	}
	for {
		select {
		case <-c.ctx.Done():
			return Delivery{}, context.Cause(c.ctx)
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		default:
		}
		if err := c.checkClaim(ctx); err != nil {
			return Delivery{}, err
		}
		if len(c.unread) > 0 {
			return c.next()
		}
		if c.ended {
			return Delivery{}, ErrEnded
		}
		if c.caughtUp() {
			select {
			case message := <-c.audio:
				return c.audioDelivery(message), nil
			default:
			}
		}
		due, drained, err := c.touch(ctx)
		if err == nil {
			err = c.read(ctx, readBatch)
		}
		if err != nil && c.ctx.Err() == nil {
			return Delivery{}, fmt.Errorf("read the stream: %w", err)
		}
		if len(c.unread) > 0 || c.ended {
			continue
		}
		if drained && c.stream.key == kv.RuntimeStreamKey(c.ID) {
			return Delivery{}, ErrEnded // the last entry may be deleted already
		}
		c.current = true
		select {
		case <-c.changed:
			c.current = false
		case <-time.After(time.Until(due)):
		case message := <-c.audio:
			return c.audioDelivery(message), nil
		case <-c.ctx.Done():
		case <-ctx.Done():
		}
	}
}

// caughtUp reports whether the stream had no further entry when it was last read
// and no notice has arrived since. Only then may Receive return audio.
func (c *Channel) caughtUp() bool {
	select {
	case <-c.changed:
		c.current = false
	default:
	}
	due := c.due.Load()
	return c.current && due != nil && time.Now().Before(*due)
}

func (c *Channel) audioDelivery(message *wire.ChannelMessage) Delivery {
	return Delivery{Entry: wire.Entry{Kind: wire.KindFrame, ChannelID: c.ID, At: message.Timestamp, Message: message}}
}

func (c *Channel) next() (Delivery, error) {
	d := c.unread[0]
	c.unread = c.unread[1:]
	c.current = false
	position := d.Position // a pointer to the member would keep the entry in memory
	c.position = position
	c.lastReceived.Store(&position)
	err := json.Unmarshal(d.JSON, &d.Entry)
	if err != nil {
		return d, fmt.Errorf("decode entry %s: %w", d.Position, err)
	}
	if c.ended = d.Entry.Kind == wire.KindChannelEnded; c.ended {
		c.lastEntry.Store(&position)
	}
	return d, nil
}

// read fetches the entry at the position, which was received before, and those after
// it. If the entry at the position is missing, the store has lost its newest entries.
func (c *Channel) read(ctx context.Context, count int) error {
	if c.position != "" {
		count++
	}
	found, err := c.runtime.read(ctx, c.stream, c.position, count)
	if err != nil {
		return err
	}
	if c.position != "" {
		if len(found) > 0 && found[0].Position == c.position {
			c.ended = found[0].isEnd()
			found = found[1:]
		} else if c.token != "" {
			_ = c.renewClaim(ctx) // reports the loss to the browser too
			return ErrLost
		}
	}
	c.unread = found
	return nil
}

// isEnd reports whether this is the last entry of its stream.
func (d Delivery) isEnd() bool {
	if !bytes.Contains(d.JSON, []byte(wire.KindChannelEnded)) {
		return false // without decoding the entry again, in the common case
	}
	var entry struct {
		Kind wire.EntryKind `json:"kind"`
	}
	return json.Unmarshal(d.JSON, &entry) == nil && entry.Kind == wire.KindChannelEnded
}

// touch runs touch.lua if a work item may have timed out, and returns when to call
// it again. drained reports that the channel has ended and all entries are
// committed. If Receive is not called, the next script on the channel times out work
// items.
func (c *Channel) touch(ctx context.Context) (due time.Time, drained bool, err error) {
	known := c.due.Load()
	if known != nil && time.Now().Before(*known) {
		return *known, false, nil
	}
	ms, err := c.run(ctx, "touch").AsInt64()
	if err != nil {
		return due, false, err
	}
	next := c.dueIn(ms)
	c.due.CompareAndSwap(known, next) // unless a notice has arrived since
	return *next, ms == touchDrained, nil
}

// touchDrained is the reply of touch.lua on an ended channel without uncommitted
// entries.
const touchDrained = -2

// dueIn returns the local time ms milliseconds from now, at most the time between two
// reads from now. A negative ms means unknown. The store sends durations, so that its
// clock and the local one need not agree.
func (c *Channel) dueIn(ms int64) *time.Time {
	longest := pollInterval
	if c.watcher != nil {
		longest = c.runtime.opts.Lease / 3
	}
	after := time.Duration(ms) * time.Millisecond
	if ms < 0 || after > longest {
		after = longest
	}
	at := time.Now().Add(after)
	return &at
}

// parseWait returns a number of milliseconds, or -1 if there is none.
func parseWait(text string) int64 {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return ms
}

// subscriber receives the notices of a channel's topic. Entries whose notices were
// lost are found by the next read; lost audio is not repeated.
type subscriber struct{ *Channel }

func (c subscriber) Down(error) {}

func (c subscriber) Up() {
	c.due.Store(nil)
	c.newestEntry.Store(nil)
	c.wake()
}

// Message handles a notice: audio, another claim, or the time until the next work item
// times out, which stands after the last space or after the leading D.
func (c subscriber) Message(payload string) {
	var notice kv.Notice
	if payload != "" {
		notice = kv.Notice(payload[0])
	}
	switch notice {
	case kv.NoticeAudio:
		c.receiveAudio(payload[1:])
		return
	case kv.NoticeClaimed:
		if payload[1:] == c.token {
			return
		}
		c.checkNow.Store(true)
	case kv.NoticeEntry:
		id, _, _ := strings.Cut(payload[1:], " ")
		c.newestEntry.Store(&id)
		fallthrough
	default:
		c.due.Store(c.dueIn(parseWait(payload[1+strings.LastIndexAny(payload, " D"):])))
	}
	c.wake()
}

func (c *Channel) receiveAudio(encoded string) {
	if c.watcher != nil {
		c.watcher.Audio(encoded)
		return
	}
	var message wire.ChannelMessage
	if json.Unmarshal([]byte(encoded), &message) != nil {
		return
	}
	select {
	case c.audio <- &message:
	default:
		c.dropped.Add(1)
	}
}

func (c *Channel) wake() {
	if c.watcher != nil {
		c.watcher.Wake()
		return
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// AudioDropped returns the number of audio frames that were dropped because
// Receive was not called in time.
func (c *Channel) AudioDropped() int64 { return c.dropped.Load() }

// stream is one direction of a channel.
type stream struct {
	key, topic string
	entry      func(item rueidis.XRangeEntry) string // the JSON of a wire.Entry
}

func runtimeStream(channelID string) stream {
	return stream{kv.RuntimeStreamKey(channelID), kv.RuntimeTopic(channelID), func(item rueidis.XRangeEntry) string {
		return item.FieldValues["entry"]
	}}
}

func history(channelID string) stream {
	return stream{kv.HistoryKey(channelID), kv.BrowserTopic(channelID), func(item rueidis.XRangeEntry) string {
		_, at, _ := strings.Cut(item.ID, "-") // number-milliseconds
		return fmt.Sprintf(`{"kind":"frame","channelId":%q,"at":%s,"message":%s}`, channelID, at, item.FieldValues["message"])
	}}
}

// Observe reads the runtime stream of a channel without claiming it. It starts after
// the position from, or with the oldest entry if from is empty. On the returned
// channel Send, Await, Cancel and End act on behalf of the runtime that has the
// claim, and Commit fails with ErrClaimLost.
func (r *Runtime) Observe(channelID, from string) *Channel {
	return r.observe(channelID, from, runtimeStream(channelID))
}

// ObserveHistory reads the messages to the channel's browser like Observe reads
// the runtime stream. They arrive as entries of kind frame. Receive does not
// report the end of the channel.
func (r *Runtime) ObserveHistory(channelID, from string) *Channel {
	return r.observe(channelID, from, history(channelID))
}

func (r *Runtime) observe(channelID, from string, s stream) *Channel {
	c := newChannel(r, channelID, Claim{}, s)
	c.position = from
	c.subscribe()
	return c
}

// Entries applies expired deadlines and returns up to count entries that are on a
// channel's runtime stream, the oldest first, starting with the one at the position
// from. Older committed entries are no longer there, see the contract's section Commit.
// It fails with ErrNotFound if the channel does not exist.
func (r *Runtime) Entries(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	c := Channel{ID: channelID, runtime: r}
	if _, _, err := c.touch(ctx); err != nil {
		return nil, fmt.Errorf("apply expired deadlines: %w", err)
	}
	found, err := r.list(ctx, runtimeStream(channelID), from, count)
	if err != nil || len(found) > 0 {
		return found, err
	}
	exists, err := r.client.Do(ctx, r.client.B().Exists().Key(kv.MetaKey(channelID)).Build()).AsBool()
	if err == nil && !exists {
		err = ErrNotFound
	}
	return nil, err
}

// History returns messages to the channel's browser like Entries returns entries.
func (r *Runtime) History(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	return r.list(ctx, history(channelID), from, count)
}

func (r *Runtime) list(ctx context.Context, s stream, from string, count int) ([]Delivery, error) {
	found, err := r.read(ctx, s, from, count)
	for i := range found {
		err = errors.Join(err, json.Unmarshal(found[i].JSON, &found[i].Entry))
	}
	return found, err
}

// read returns deliveries whose Entry is not decoded yet.
func (r *Runtime) read(ctx context.Context, s stream, from string, count int) ([]Delivery, error) {
	items, err := r.client.Do(ctx, r.client.B().Xrange().Key(s.key).Start(cmp.Or(from, "-")).End("+").Count(int64(count)).Build()).AsXRange()
	if err != nil {
		return nil, err
	}
	found := make([]Delivery, len(items))
	for i, item := range items {
		found[i] = Delivery{Position: item.ID, JSON: jsontext.Value(s.entry(item))}
	}
	return found, nil
}
