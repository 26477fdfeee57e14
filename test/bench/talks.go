package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// telapiTalks runs conversations on telapi.
type telapiTalks struct {
	instance *telapi
	runtime  *callruntime.Runtime
	newest   atomic.Pointer[string] // ID of a session
}

// startTalks starts an instance and a runtime.
func (s *site) startTalks(settings ...string) *telapiTalks {
	t := s.startTelapi(settings...)
	side := &telapiTalks{instance: t, runtime: t.connectRuntime()}
	go serve(side)
	return side
}

func (t *telapiTalks) servers() []*process { return []*process{t.instance.process} }

func (t *telapiTalks) close() {
	t.runtime.Close()
	t.instance.kill()
}

func (t *telapiTalks) open() *browser {
	token, conn := t.instance.openSession()
	t.newest.Store(&token.SessionID)
	return &browser{
		conn: conn,
		chat: func() string { return chatFrame(token.SessionID, "to_ari") },
		kind: func(frame []byte) said {
			switch {
			case bytes.Contains(frame, []byte(`"event":"ack"`)):
				return acknowledgement
			case bytes.Contains(frame, []byte(`"type":"chat"`)):
				return botSaid
			}
			return other
		},
	}
}

func (t *telapiTalks) accept() (talk, error) {
	c, err := t.runtime.Accept(context.Background(), wire.Accept{AwaitChat: &wire.AwaitChat{}})
	return &telapiTalk{Channel: c}, err
}

type telapiTalk struct {
	*callruntime.Channel
	position string        // of the newest entry
	item     *wire.Awaited // of it
	ended    bool
}

func (c *telapiTalk) receive() said {
	d := must(c.Receive(context.Background()))
	c.position, c.item = d.Position, d.WorkItem
	switch d.Entry.Kind {
	case wire.KindFrame:
		return userSaid
	case wire.KindBotMessage:
		return botSaid
	case wire.KindChannelEnded:
		c.ended = true
	}
	return other
}

func (c *telapiTalk) await() (url, token, channelID string) {
	if c.item == nil { // the frame came before the claim
		c.item = new(must(c.Await(context.Background(), wire.Await{})))
	}
	return c.item.URL, c.item.Token, c.ID
}

func (c *telapiTalk) send(text string) {
	check(c.Send(context.Background(), wire.ChannelMessage{Type: wire.TypeChat, Chat: fmt.Appendf(nil, `{"text":%q}`, text)}))
	check(c.Commit(context.Background(), c.position))
}

func (c *telapiTalk) end() {
	check(c.End(context.Background(), "done"))
	for !c.ended {
		c.receive()
	}
	check(c.Commit(context.Background(), c.position))
}
