package callruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// MaxMessageBytes bounds a message to the browser.
const MaxMessageBytes = 64 << 10

// Send sends a durable message to the browser, now or when it is back. What
// identifies the message is filled in where it is empty. To send a message again
// under the same MessageID, because it is not known what became of it, is
// harmless.
func (c *Channel) Send(ctx context.Context, m wire.ChannelMessage) error {
	return c.SendAsync(ctx, m)()
}

// SendAsync sends like Send without waiting for the store: wait does, and returns
// what Send would. Messages reach the browser in the order in which they were
// begun. A runtime that streams begins one while others are under way: those
// travel together, for little more than the cost of one.
func (c *Channel) SendAsync(ctx context.Context, m wire.ChannelMessage) (wait func() error) {
	o, err := c.outgoing(ctx, m)
	if err != nil {
		return func() error { return fmt.Errorf("send: %w", err) }
	}
	c.outbox.add(o)
	return o.wait
}

func (c *Channel) outgoing(ctx context.Context, m wire.ChannelMessage) (*outgoing, error) {
	if !m.Type.Known() || !m.Type.Durable() {
		return nil, fmt.Errorf("a message of type %q is not kept", m.Type)
	}
	encoded, err := c.encode(m)
	if err != nil {
		return nil, err
	}
	var control struct {
		Command string `json:"command"`
	}
	if m.Type == wire.TypeControl {
		_ = json.Unmarshal(m.Control, &control) // any other shape is for the browser to understand
	}
	letter := byte('-')
	switch control.Command {
	case wire.EnableTextChat:
		letter = 'e'
	case wire.DisableTextChat:
		letter = 'd'
	}
	return &outgoing{ctx: ctx, encoded: encoded, letter: letter, done: make(chan struct{})}, nil
}

// SendAudio sends an audio frame to the browser, which gets it if it is there.
func (c *Channel) SendAudio(ctx context.Context, audio jsontext.Value) error {
	encoded, err := c.encode(wire.ChannelMessage{Type: wire.TypeAudio, Audio: audio})
	if err == nil {
		client := c.runtime.client
		// By the node of the channel's slot, so that a cluster keeps the order.
		err = client.Do(ctx, client.B().Arbitrary("PUBLISH").Keys(kv.BrowserTopic(c.ID)).Args(string(kv.NoticeAudio)+encoded.json).Build()).Error()
	}
	if err != nil {
		return fmt.Errorf("send audio: %w", err)
	}
	return nil
}

type encoded struct {
	name string // the message id that the caller chose and may use again
	json string
}

func (c *Channel) encode(m wire.ChannelMessage) (encoded, error) {
	name := m.MessageID
	if name == "" {
		m.MessageID = uuid.NewString()
	} else if !wire.ValidChannelID(name) {
		return encoded{}, fmt.Errorf("%q is no message id: up to 128 letters, digits and . _ : -", name)
	}
	if m.Timestamp == 0 {
		m.Timestamp = time.Now().UnixMilli()
	}
	m.SessionID, m.Direction = c.ID, wire.ToBrowser
	payload, member := m.Payload()
	compact, err := jsontext.AppendFormat(nil, *payload) // one line
	if err != nil || compact[0] != '{' {
		return encoded{}, errors.Join(fmt.Errorf("a message of type %s needs the object %q", m.Type, member), err)
	}
	*payload = compact
	line := string(m.Append(make([]byte, 0, len(compact)+256)))
	if len(line) > MaxMessageBytes {
		return encoded{}, fmt.Errorf("the message has %d bytes, %d are the most", len(line), MaxMessageBytes)
	}
	return encoded{name, line}, nil
}
