package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/kv"
)

// MaxMessageBytes is the maximum size of an encoded message.
const MaxMessageBytes = 64 << 10

// Send sends durable messages to the browser, or none if one of them is invalid. A browser
// that is not connected receives them when it reconnects. Empty identifying fields are filled
// in. If the outcome is unknown, sending a message again with the same MessageID is safe.
func (c *Channel) Send(ctx context.Context, messages ...wire.ChannelMessage) error {
	return c.CommitAndSend(ctx, "", messages...)
}

// CommitAndSend commits a position, unless it is empty, and sends messages. If it fails, the
// position may be committed or not. It fails with ErrUnknownPosition, and sends nothing, if
// Commit has to be called, which says why.
func (c *Channel) CommitAndSend(ctx context.Context, position string, messages ...wire.ChannelMessage) error {
	n, replicated := len(messages), c.runtime.opts.MinReplicas > 0
	flags, args := make([]byte, 0, n+1), make([]string, 4+2*n)
	for i, m := range messages {
		if !m.Type.Known() || !m.Type.Durable() {
			return fmt.Errorf("send: messages of type %q are not durable", m.Type)
		}
		m.MessageID = cmp.Or(m.MessageID, uuid.NewString()) // it is sent once, however often it is tried
		encoded, err := c.encode(m)
		if err != nil {
			return wrap("send", err)
		}
		flags = append(flags, switchFlags[m.TextChatSwitch()])
		args[4+i], args[4+n+i] = m.MessageID, encoded
	}
	if replicated {
		flags = append(flags, 'h') // the browser gets the messages only once replicas have them
	}
	args[0], args[1], args[2], args[3] = c.token, string(flags), c.lastSent(), position
	words, err := c.run(ctx, "send", args...).AsStrSlice()
	if err == nil && len(words) > n {
		newest := words[0]
		c.newestSent.Store(&newest)
		words = words[1:]
		if replicated {
			err = c.do(ctx, "confirm", newest, "") // makes the messages visible to the browser
		}
	}
	for _, word := range words {
		err = cmp.Or(err, replyError(word))
	}
	return wrap("send", err)
}

// showHeld makes messages visible to the browser that a former claim has sent, as soon as
// replicas have them. It may have ended before it did so.
func (c *Channel) showHeld(newest string) {
	before := c.newestSent.Load()
	for c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(c.ctx, attemptTimeout)
		err := kv.WaitForReplicas(ctx, c.runtime.client, c.runtime.opts.MinReplicas, kv.ReplicatedKey(c.ID))
		if err == nil {
			err = c.do(ctx, "confirm", newest, c.runtime.aheadOfReplicas())
		}
		cancel()
		if err == nil {
			c.newestSent.CompareAndSwap(before, &newest) // unless this claim has sent others
		}
		if err == nil || errors.Is(err, ErrLost) {
			return
		}
		_ = background.Sleep(c.ctx, retryDelay)
	}
}

// lastSent returns the ID of the newest message that the store acknowledged; empty if there
// is none.
func (c *Channel) lastSent() string {
	if id := c.newestSent.Load(); id != nil {
		return *id
	}
	return ""
}

// switchFlags are the flags of messages that switch text chat, and of others, for the script send.
var switchFlags = map[string]byte{wire.EnableTextChat: 'e', wire.DisableTextChat: 'd', "": '-'}

// SendAudio sends an audio frame. A browser that is not connected misses it.
func (c *Channel) SendAudio(ctx context.Context, audio jsontext.Value) error {
	encoded, err := c.encode(wire.ChannelMessage{Type: wire.TypeAudio, Audio: audio})
	if err == nil {
		err = kv.PublishAudio(ctx, c.runtime.client, kv.BrowserTopic(c.ID), encoded)
	}
	return wrap("send audio", err)
}

func (c *Channel) encode(m wire.ChannelMessage) (string, error) {
	m.MessageID = cmp.Or(m.MessageID, uuid.NewString())
	if !wire.ValidID(m.MessageID) {
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
