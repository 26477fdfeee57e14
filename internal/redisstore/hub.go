package redisstore

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
)

// Listen implements channel.Hub. It hears something while Subscribe runs.
func (c *Channels) Listen(ctx context.Context, channelID string, l channel.Live) (stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	member := c.store.topics.Join(wire.Downward(channelID), &socket{live: l})
	if err := member.Wait(ctx); err != nil {
		member.Leave()
		return nil, fault.Unavailable(subject, err)
	}
	return member.Leave, nil
}

// SendAudio implements channel.Hub.
func (c *Channels) SendAudio(ctx context.Context, channelID string, json []byte) error {
	return c.store.do(ctx, "send audio", func(ctx context.Context, client rueidis.Client) error {
		// By the node of the channel's slot, so that a cluster keeps the order.
		return client.Do(ctx, client.B().Arbitrary("PUBLISH").Keys(wire.Upward(channelID)).
			Args(string(wire.NoticeAudio)+rueidis.BinaryString(json)).Build()).Error()
	})
}

// socket turns what is published for a browser into calls.
type socket struct {
	live    channel.Live
	hasGone bool
}

func (s *socket) Down(error) { s.hasGone = true }

func (s *socket) Up() {
	if s.hasGone {
		s.live.Gap()
	}
}

func (s *socket) Message(payload string) {
	if payload == "" {
		return
	}
	switch rest := payload[1:]; wire.Notice(payload[0]) {
	case wire.NoticeMessage:
		if after, list, ok := parseMessages(rest); ok {
			s.live.Messages(after, list)
		}
	case wire.NoticeAudio:
		s.live.Audio([]byte(rest))
	case wire.NoticeReplaced:
		s.live.Replaced(rest)
	case wire.NoticeClosed:
		s.live.Closed(rest)
	}
}

// parseMessages reads a notice of messages: epoch, id before, then id:length of
// each, and after a line feed the messages themselves.
func parseMessages(notice string) (after channel.Cursor, list []channel.Message, ok bool) {
	head, json, _ := strings.Cut(notice, "\n")
	at := strings.Split(head, " ")
	if len(at) < 3 {
		return after, nil, false
	}
	after = channel.Cursor{Epoch: at[0], ID: at[1]}
	for _, each := range at[2:] {
		id, length, _ := strings.Cut(each, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(json) {
			return after, nil, false
		}
		list = append(list, channel.Message{Cursor: channel.Cursor{Epoch: after.Epoch, ID: id}, JSON: []byte(json[:n])})
		json = json[n:]
	}
	return after, list, true
}
