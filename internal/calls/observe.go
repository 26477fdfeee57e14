package calls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/internal/kv"
)

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

// Team returns the ID of the team of a channel. It fails with ErrNotFound if the channel
// does not exist.
func (r *Runtime) Team(ctx context.Context, channelID string) (string, error) {
	team, err := r.client.Do(ctx, r.client.B().Hget().Key(kv.MetaKey(channelID)).Field("team").Build()).ToString()
	if rueidis.IsRedisNil(err) {
		err = ErrNotFound
	}
	return team, err
}

// Entries applies expired deadlines and returns up to count entries that are on a
// channel's runtime stream, the oldest first, starting with the one at the position
// from. Older committed entries are no longer there, see the script commit.
// It fails with ErrNotFound if the channel does not exist.
func (r *Runtime) Entries(ctx context.Context, channelID, from string, count int) ([]Delivery, error) {
	c := Channel{ID: channelID, runtime: r}
	if _, err := c.touch(ctx); err != nil {
		return nil, err
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
		err = errors.Join(err, found[i].decode())
	}
	return found, err
}

// decode decodes an entry of the stream, and removes what only the service needs.
func (d *Delivery) decode() error {
	if members, found := CutItem(d.JSON); found {
		d.JSON = append(jsontext.Value{'{'}, members...)
	}
	return json.Unmarshal(d.JSON, &d.Entry)
}

// CutItem finds the member item, with which the script frame starts the entry of a chat frame
// that has a work item. It returns the other members with the closing brace.
func CutItem(entry []byte) (members []byte, found bool) {
	if !bytes.HasPrefix(entry, []byte(`{"item":`)) {
		return nil, false
	}
	_, members, found = bytes.Cut(entry, []byte("},")) // the item has no braces inside
	return members, found
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
