package callruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// Limits of one request.
const (
	maxMessageBytes = 64 << 10
	maxMessages     = 64
	maxBatchBytes   = 512 << 10
)

// outgoing is a message on its way to the browser.
type outgoing struct {
	wire.ChannelMessage
	size   int // of the payload
	result chan error
}

// Send sends a durable message to the browser. A browser that is not connected
// receives it when it reconnects. Empty identifying fields are filled in. If the
// outcome is unknown, sending the message again with the same MessageID is safe.
func (c *Channel) Send(ctx context.Context, m wire.ChannelMessage) error {
	return c.SendAsync(ctx, m)()
}

// SendAsync sends like Send but does not wait for the service; wait does, and returns
// the error of Send. Call wait once. Messages reach the browser in the order of the
// calls. Messages that are sent while others are under way share one request.
// SendAsync blocks while many messages are waiting.
func (c *Channel) SendAsync(ctx context.Context, m wire.ChannelMessage) (wait func() error) {
	out := &outgoing{result: make(chan error, 1)}
	err := c.complete(&m)
	if !m.Type.Durable() {
		err = fmt.Errorf("messages of type %q are not durable", m.Type)
	}
	if err == nil {
		payload, _ := m.Payload()
		out.ChannelMessage, out.size = m, len(*payload)
		select {
		case c.outbox <- out:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	} else {
		out.result <- fmt.Errorf("send: %w", err)
	}
	return func() error {
		select {
		case err := <-out.result:
			return err
		case <-ctx.Done():
			return fmt.Errorf("send: %w", context.Cause(ctx))
		case <-c.ctx.Done():
			return fmt.Errorf("send: %w", context.Cause(c.ctx))
		}
	}
}

// complete checks a message and fills in what identifies it.
func (c *Channel) complete(m *wire.ChannelMessage) error {
	payload, member := m.Payload()
	if payload == nil || payload.Kind() != '{' || !payload.IsValid() {
		return fmt.Errorf("a message of type %q requires the object %q", m.Type, member)
	}
	if len(*payload) > maxMessageBytes {
		return fmt.Errorf("message too large: %d bytes, maximum %d", len(*payload), maxMessageBytes)
	}
	if m.MessageID == "" {
		m.MessageID = uuid.NewString()
	}
	m.Timestamp = cmp.Or(m.Timestamp, time.Now().UnixMilli())
	m.SessionID, m.Direction = c.ID, wire.ToBrowser
	return nil
}

// sendQueued sends the queued messages, one batch after the other, until the channel
// is closed.
func (c *Channel) sendQueued() {
	for c.ctx.Err() == nil {
		var batch []*outgoing
		select {
		case m := <-c.outbox:
			batch = append(batch, m)
		case <-c.ctx.Done():
			return
		}
		for size := batch[0].size; len(batch) < maxMessages && size < maxBatchBytes && len(c.outbox) > 0; {
			m := <-c.outbox
			size += m.size
			batch = append(batch, m)
		}
		err := c.sendBatch(batch)
		rejected := len(batch) > 1 && errors.As(err, new(*wire.RuntimeError))
		for i, m := range batch {
			if rejected { // one of them is invalid: find out which
				err = c.sendBatch(batch[i : i+1])
			}
			m.result <- err
		}
	}
}

// sendBatch sends messages in one request. They are sent even if their callers no
// longer wait, but not after the claim is lost.
func (c *Channel) sendBatch(batch []*outgoing) error {
	q := &wire.Send{Request: c.head(wire.OpSend)}
	for _, m := range batch {
		q.Messages = append(q.Messages, m.ChannelMessage)
	}
	return c.call(c.ctx, request{head: &q.Request, body: q})
}

// SendAudio sends an audio frame. A browser that is not connected misses it. Frames are
// dropped while the connection is lost or busy.
func (c *Channel) SendAudio(_ context.Context, audio jsontext.Value) error {
	q := wire.SendAudio{Request: c.head(wire.OpAudio), Message: wire.ChannelMessage{Type: wire.TypeAudio, Audio: audio}}
	err := c.complete(&q.Message)
	if err == nil {
		err = context.Cause(c.ctx)
	}
	raw, encodeErr := json.Marshal(q)
	if err = errors.Join(err, encodeErr); err != nil {
		return fmt.Errorf("send audio: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.socket.out) >= maxQueued/2 {
		c.dropped++
		return nil
	}
	select {
	case c.socket.out <- raw:
	default:
		c.dropped++
	}
	return nil
}

// AwaitOptions describe a work item. The defaults are wire.BotItem, wire.ScopeItem, a
// random ID and 5 minutes.
type AwaitOptions struct {
	Kind       wire.WorkItemKind
	Scope      wire.Scope
	WorkItemID string // 1 to 128 letters, digits and . _ : -, unique among the channel's recent items
	TTL        time.Duration
	// Trace is that of the entry that caused the request. It is part of the URL of the
	// callback, so that the callback's entries continue the trace.
	Trace wire.Trace
}

// WorkItem contains the data that a provider needs to post its result.
type WorkItem struct {
	ID         string
	Kind       wire.WorkItemKind
	Token, URL string // the credential, and where the provider posts the result
	ExpiresAt  time.Time
}

// LogValue omits the credential.
func (w WorkItem) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", w.ID), slog.String("kind", string(w.Kind)), slog.Time("expiresAt", w.ExpiresAt))
}

// Await registers a work item. Call it before the request to the provider. Receive
// returns the result after those of earlier work items, or an entry of kind timeout if
// the item expires first. Awaiting the same ID again returns the same item. If the
// outcome is unknown because ctx has ended, Await cancels the item, so that it does not
// delay later ones.
func (c *Channel) Await(ctx context.Context, o AwaitOptions) (WorkItem, error) {
	if o.WorkItemID == "" {
		o.WorkItemID = uuid.NewString()
	}
	o.Kind = cmp.Or(o.Kind, wire.BotItem)
	q := &wire.Await{Request: c.head(wire.OpAwait), WorkItemID: o.WorkItemID, Kind: o.Kind, Scope: o.Scope, TTLMs: o.TTL.Milliseconds(), Trace: o.Trace}
	var item wire.Awaited
	err := c.call(ctx, request{head: &q.Request, body: q, onReply: func(_ *socket, ok jsontext.Value, _ bool) error {
		return json.Unmarshal(ok, &item)
	}})
	if err != nil {
		if ctx.Err() != nil {
			c.runtime.mu.Lock()
			defer c.runtime.mu.Unlock()
			c.runtime.start(func() { _ = c.Cancel(c.ctx, o.WorkItemID) })
		}
		return WorkItem{}, err
	}
	return WorkItem{ID: item.WorkItemID, Kind: o.Kind, Token: item.Token, URL: item.URL, ExpiresAt: time.UnixMilli(item.Deadline)}, nil
}

// Cancel cancels a work item. Results that wait for it are received without it, a
// result that has arrived early is dropped, and a later callback is rejected. It fails
// with ErrWorkItemNotFound if the result is already on the stream or the item has
// expired.
func (c *Channel) Cancel(ctx context.Context, workItemID string) error {
	q := &wire.Cancel{Request: c.head(wire.OpCancel), WorkItemID: workItemID}
	err := c.call(ctx, request{head: &q.Request, body: q})
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("cancel %s: %w", workItemID, ErrWorkItemNotFound)
	}
	return err
}
