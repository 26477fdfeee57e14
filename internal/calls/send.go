package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/redisconn"
)

// MaxMessageBytes is the maximum size of an encoded message.
const MaxMessageBytes = 64 << 10

// Limits of one batch: while send.lua runs, the store blocks all other clients.
const (
	maxBatchMessages = 64
	maxBatchBytes    = 512 << 10
)

// Send sends a durable message to the browser. A browser that is not connected
// receives it when it reconnects. Empty identifying fields are filled in. If the
// outcome is unknown, sending the message again with the same MessageID is safe.
func (c *Channel) Send(ctx context.Context, m wire.ChannelMessage) error {
	return c.SendAsync(ctx, m)()
}

// SendAsync sends like Send but does not wait for the store; wait does, and
// returns the error of Send. Messages reach the browser in the order of the calls.
// Messages that are sent while others are under way share one round trip.
func (c *Channel) SendAsync(ctx context.Context, m wire.ChannelMessage) (wait func() error) {
	if !m.Type.Known() || !m.Type.Durable() {
		return func() error { return fmt.Errorf("send: messages of type %q are not durable", m.Type) }
	}
	messageID := m.MessageID
	encoded, err := c.encode(m)
	if err != nil {
		return func() error { return wrap("send", err) }
	}
	out := &outgoing{ctx: ctx, messageID: messageID, json: encoded, flag: flag(m), done: make(chan struct{})}
	c.outbox.add(out)
	return out.wait
}

// SendAll sends messages like Send, or none if one of them is invalid. It waits for all.
func (c *Channel) SendAll(ctx context.Context, messages []wire.ChannelMessage) error {
	list := make([]*outgoing, len(messages))
	for i, m := range messages {
		encoded, err := c.encode(m)
		if err != nil {
			return wrap("send", err)
		}
		list[i] = &outgoing{ctx: ctx, messageID: m.MessageID, json: encoded, flag: flag(m), done: make(chan struct{})}
	}
	c.outbox.add(list...)
	var err error
	for _, out := range list {
		err = cmp.Or(err, out.wait())
	}
	return err
}

// flag returns how send.lua has to treat a message.
func flag(m wire.ChannelMessage) byte {
	var control struct {
		Command string `json:"command"`
	}
	if m.Type == wire.TypeControl {
		_ = json.Unmarshal(m.Control, &control) // other shapes have no meaning for the service
	}
	switch control.Command {
	case wire.EnableTextChat:
		return 'e'
	case wire.DisableTextChat:
		return 'd'
	default:
		return '-'
	}
}

// SendAudio sends an audio frame. A browser that is not connected misses it.
func (c *Channel) SendAudio(ctx context.Context, audio jsontext.Value) error {
	encoded, err := c.encode(wire.ChannelMessage{Type: wire.TypeAudio, Audio: audio})
	if err == nil {
		err = redisconn.PublishAudio(ctx, c.runtime.client, kv.BrowserTopic(c.ID), encoded)
	}
	return wrap("send audio", err)
}

func (c *Channel) encode(m wire.ChannelMessage) (string, error) {
	if m.MessageID == "" {
		m.MessageID = uuid.NewString()
	} else if !wire.ValidID(m.MessageID) {
		return "", invalidID("message", m.MessageID)
	}
	if m.Timestamp == 0 {
		m.Timestamp = time.Now().UnixMilli()
	}
	m.SessionID, m.Direction = c.ID, wire.ToBrowser
	payload, member := m.Payload()
	compact, err := jsontext.AppendFormat(nil, *payload) // one line
	if err != nil || compact[0] != '{' {
		return "", errors.Join(fmt.Errorf("a message of type %s requires the object %q", m.Type, member), err)
	}
	*payload = compact
	encoded := string(m.Append(make([]byte, 0, len(compact)+256)))
	if len(encoded) > MaxMessageBytes {
		return "", fmt.Errorf("%w: %d bytes, maximum %d", ErrTooLarge, len(encoded), MaxMessageBytes)
	}
	return encoded, nil
}

// outbox sends a channel's messages in order. Messages that are added while a
// batch is being sent form the next batch.
type outbox struct {
	channel *Channel

	mu      sync.Mutex
	queue   []*outgoing
	sending bool   // a goroutine runs send
	newest  string // ID of the newest message that the store acknowledged
}

// outgoing is a message on its way to the browser.
type outgoing struct {
	ctx       context.Context // of the caller
	messageID string          // empty unless the caller chose it and may use it again
	json      string
	flag      byte // as send.lua expects it
	done      chan struct{}
	err       error // set before done is closed
}

func (m *outgoing) wait() error {
	select {
	case <-m.done:
		return m.err
	case <-m.ctx.Done():
		return wrap("send", m.ctx.Err())
	}
}

func (m *outgoing) finish(err error) {
	m.err = wrap("send", err)
	close(m.done)
}

func (b *outbox) newestID() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest
}

func (b *outbox) setNewest(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.newest = id
}

func (b *outbox) add(list ...*outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sending {
		if err := b.channel.runtime.start(b.send); err != nil {
			for _, m := range list {
				m.finish(err)
			}
			return
		}
		b.sending = true
	}
	b.queue = append(b.queue, list...)
}

// send sends batches until the queue is empty.
func (b *outbox) send() {
	for batch := b.next(); batch != nil; batch = b.next() {
		words, err := b.sendBatch(batch)
		for i, m := range batch {
			if err != nil {
				m.finish(err)
			} else {
				m.finish(replyError(words[min(i, len(words)-1)]))
			}
		}
	}
}

// next takes the next batch off the queue. It skips messages whose caller no
// longer waits.
func (b *outbox) next() (batch []*outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < len(b.queue) && len(batch) < maxBatchMessages && bytes < maxBatchBytes {
		if m := b.queue[n]; m.ctx.Err() == nil {
			batch = append(batch, m)
			bytes += len(m.json)
		}
		n++
	}
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	b.sending = batch != nil
	return batch
}

// sendBatch runs send.lua until no caller waits any more. It returns one word for
// each message, or one for all.
func (b *outbox) sendBatch(batch []*outgoing) ([]string, error) {
	c := b.channel
	ctx, cancel := whileAwaited(c.runtime.ctx, batch)
	defer cancel()
	flags, ids, args := make([]byte, len(batch)), make([]string, len(batch)), make([]string, 4, 4+len(batch))
	anyID := false
	for i, m := range batch {
		flags[i], ids[i], args = m.flag, cmp.Or(m.messageID, "-"), append(args, m.json)
		anyID = anyID || m.messageID != ""
	}
	replicated := c.runtime.opts.MinReplicas > 0
	if replicated {
		flags = append(flags, 'h') // the browser gets the messages only once replicas have them
	}
	args[0], args[1], args[2] = c.token, string(flags), b.newestID()
	if anyID {
		args[3] = strings.Join(ids, " ")
	}
	words, err := c.run(ctx, "send", args...).AsStrSlice()
	if err != nil && c.runtime.ctx.Err() != nil {
		err = ErrClosed
	}
	if err == nil && len(words) > len(batch) {
		b.setNewest(words[0])
		if replicated {
			err = c.do(ctx, "confirm", words[0]) // makes the messages visible to the browser
		}
		words = words[1:]
	}
	return words, err
}

// whileAwaited returns a context that ends with parent, or when the contexts of
// all messages have ended. It has the latest of their deadlines, so that the script has no
// effect after it.
func whileAwaited(parent context.Context, batch []*outgoing) (ctx context.Context, cancel func()) {
	var latest time.Time
	all := true
	for _, m := range batch {
		deadline, ok := m.ctx.Deadline()
		if all = all && ok; deadline.After(latest) {
			latest = deadline
		}
	}
	ctx, end := context.WithCancel(parent)
	if all {
		ctx, end = context.WithDeadline(parent, latest)
	}
	var left atomic.Int64
	left.Store(int64(len(batch)))
	stops := make([]func() bool, len(batch))
	for i, m := range batch {
		stops[i] = context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				end()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
}
