package callruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

const (
	maxAudio  = 256 // frames that wait for Receive
	readCount = 128
	lookEvery = 5 * time.Second // for what no notice was heard of
)

// Delivery is one thing that happened on a channel.
type Delivery struct {
	// Position is what to commit once it is dealt with; empty for audio.
	Position string
	Entry    wire.Entry
	JSON     jsontext.Value // the entry as it stands on the stream
}

// Receive returns what happened next: the entries of the stream in their order,
// and audio frames as they come. It fails with ErrEnded after the entry that
// says so, with ErrClaimLost or ErrLost when the channel is no longer this
// runtime's, and with ErrClosed once it is closed here. An entry that cannot be
// decoded comes with an error and its position, and can be passed over.
func (c *Channel) Receive(ctx context.Context) (Delivery, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		select {
		case <-c.life.Done():
			return Delivery{}, context.Cause(c.life)
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		case message := <-c.audio:
			return c.heard(message), nil
		default:
		}
		if len(c.unread) > 0 {
			return c.next()
		}
		if c.ended {
			return Delivery{}, ErrEnded
		}
		due, err := c.touch(ctx)
		if err == nil {
			err = c.read(ctx)
		}
		if err != nil && c.life.Err() == nil {
			return Delivery{}, fmt.Errorf("read the stream: %w", err)
		}
		if len(c.unread) > 0 || c.ended {
			continue
		}
		select {
		case <-c.news:
		case <-time.After(time.Until(due)):
		case message := <-c.audio:
			return c.heard(message), nil
		case <-c.life.Done():
		case <-ctx.Done():
		}
	}
}

func (c *Channel) heard(message *wire.ChannelMessage) Delivery {
	return Delivery{Entry: wire.Entry{Kind: wire.KindFrame, ChannelID: c.ID, At: message.Timestamp, Message: message}}
}

func (c *Channel) next() (Delivery, error) {
	d := c.unread[0]
	c.unread = c.unread[1:]
	c.position = d.Position
	err := json.Unmarshal(d.JSON, &d.Entry)
	if err != nil {
		return d, fmt.Errorf("decode entry %s: %w", d.Position, err)
	}
	c.ended = d.Entry.Kind == wire.KindChannelEnded
	return d, nil
}

// read fetches what follows the position, and the position itself: where that
// has gone, the store has lost what came after it too, and counts again from an
// earlier point.
func (c *Channel) read(ctx context.Context) error {
	found, err := c.list(ctx, c.position)
	if err != nil {
		return err
	}
	if c.position != "" {
		if len(found) > 0 && found[0].Position == c.position {
			c.ended = found[0].isEnd()
			found = found[1:]
		} else if c.token != "" {
			return ErrLost
		}
	}
	c.unread = found
	return nil
}

// isEnd tells whether it is the last entry of its stream, of which a reader that
// was started again has read everything before.
func (d Delivery) isEnd() bool {
	if !bytes.Contains(d.JSON, []byte(wire.KindChannelEnded)) {
		return false // as almost always, and without decoding it once more
	}
	var entry struct {
		Kind wire.EntryKind `json:"kind"`
	}
	return json.Unmarshal(d.JSON, &entry) == nil && entry.Kind == wire.KindChannelEnded
}

// touch sees to it that what is due on the channel is done, and returns when to
// do so again. Where nobody receives, whatever happens on the channel does it.
func (c *Channel) touch(ctx context.Context) (time.Time, error) {
	known := c.due.Load()
	if known != nil && time.Now().Before(*known) {
		return *known, nil
	}
	ms, err := c.run(ctx, c.runtime.touch).AsInt64()
	if err != nil {
		return time.Time{}, err
	}
	next := dueIn(ms)
	c.due.CompareAndSwap(known, next) // unless a notice has come since
	return *next, nil
}

// dueIn is when to touch the channel: in so many ms, if that is not negative, and
// before long in any case. Of the store's clock only how it runs is relied on.
func dueIn(ms int64) *time.Time {
	after := time.Duration(ms) * time.Millisecond
	if ms < 0 || after > lookEvery {
		after = lookEvery
	}
	at := time.Now().Add(after)
	return &at
}

// Entries returns what is on a channel's stream from a position on, without
// waiting for more: the oldest first, and what was committed long ago no more.
func (r *Runtime) Entries(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	found, err := r.entries(ctx, channelID, from, count)
	for i := range found {
		err = errors.Join(err, json.Unmarshal(found[i].JSON, &found[i].Entry))
	}
	return found, err
}

func (r *Runtime) entries(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	if from == "" {
		from = "-"
	}
	list, err := r.client.Do(ctx, r.client.B().Xrange().Key(kv.RuntimeStream(channelID)).Start(from).End("+").Count(int64(count)).Build()).AsXRange()
	if err != nil {
		return nil, err
	}
	found := make([]Delivery, 0, len(list))
	for _, entry := range list {
		found = append(found, Delivery{Position: entry.ID, JSON: jsontext.Value(entry.FieldValues["entry"])})
	}
	return found, nil
}

// ear hears of its channel. What goes unheard is found by looking.
type ear struct{ *Channel }

func (c ear) Down(error) {}

func (c ear) Up() {
	c.due.Store(nil)
	c.look()
}

func (c ear) Message(payload string) {
	if payload == "" || kv.Notice(payload[0]) != kv.NoticeAudio {
		ms, err := strconv.ParseInt(payload[1+strings.LastIndexAny(payload, " D"):], 10, 64)
		if err != nil {
			ms = -1
		}
		c.due.Store(dueIn(ms))
		c.look()
		return
	}
	var message wire.ChannelMessage
	if json.Unmarshal([]byte(payload[1:]), &message) != nil {
		return
	}
	select {
	case c.audio <- &message:
	default:
		c.dropped.Add(1)
	}
}

func (c *Channel) look() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// AudioDropped counts audio frames that Receive was too slow for.
func (c *Channel) AudioDropped() int64 { return c.dropped.Load() }
