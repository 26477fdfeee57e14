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
	"telapi/internal/redisconn"
)

// MaxMessageBytes is the maximum size of an encoded message.
const MaxMessageBytes = 64 << 10

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
		return func() error { return fmt.Errorf("send: %w", err) }
	}
	o := &outgoing{ctx: ctx, messageID: messageID, json: encoded, flag: flag(m), done: make(chan struct{})}
	c.outbox.add(o)
	return o.wait
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
	if err != nil {
		return fmt.Errorf("send audio: %w", err)
	}
	return nil
}

func (c *Channel) encode(m wire.ChannelMessage) (string, error) {
	if m.MessageID == "" {
		m.MessageID = uuid.NewString()
	} else if !wire.ValidChannelID(m.MessageID) {
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
		return "", fmt.Errorf("message too large: %d bytes, maximum %d", len(encoded), MaxMessageBytes)
	}
	return encoded, nil
}
