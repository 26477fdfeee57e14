package redisstore

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/redisconn"
)

// Subscribe implements channel.Hub. It hears something while Subscribe runs.
func (c *Channels) Subscribe(ctx context.Context, channelID string, l channel.Subscriber) (stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	member := c.store.topics.Subscribe(kv.BrowserTopic(channelID), &socket{live: l})
	if err := member.Wait(ctx); err != nil {
		member.Close()
		return nil, fault.Unavailable(subject, err)
	}
	return member.Close, nil
}

// SendAudio implements channel.Hub.
func (c *Channels) SendAudio(ctx context.Context, channelID string, json []byte) error {
	return c.store.do(ctx, "send audio", func(ctx context.Context, client rueidis.Client) error {
		return redisconn.PublishAudio(ctx, client, kv.RuntimeTopic(channelID), rueidis.BinaryString(json))
	})
}

// socket turns what is published for a browser into calls.
type socket struct {
	live    channel.Subscriber
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
	switch rest := payload[1:]; kv.Notice(payload[0]) {
	case kv.NoticeMessage:
		if after, list, ok := parseMessages(rest); ok {
			s.live.Messages(after, list)
		} else {
			s.live.Gap()
		}
	case kv.NoticeAudio:
		s.live.Audio([]byte(rest))
	case kv.NoticeReplaced:
		s.live.Replaced(rest)
	case kv.NoticeClosed:
		s.live.Closed(rest)
	}
}

// parseMessages reads a notice of messages: epoch, id before, id of the last, and
// each message on a line of its own. Their numbers have no gap and their time is
// the same.
func parseMessages(notice string) (after channel.Cursor, list []channel.Message, ok bool) {
	head, lines, _ := strings.Cut(notice, "\n")
	epoch, ids, _ := strings.Cut(head, " ")
	before, last, _ := strings.Cut(ids, " ")
	after = channel.Cursor{Epoch: epoch, ID: before}
	number, at := numbered(last)
	first, _ := numbered(before)
	for line := range strings.SplitSeq(lines, "\n") {
		first++
		id := strconv.FormatInt(first, 10) + "-" + at
		list = append(list, channel.Message{Cursor: channel.Cursor{Epoch: epoch, ID: id}, JSON: []byte(line)})
	}
	return after, list, first == number
}

// numbered is the number of an id, 0 where there is none, and its time.
func numbered(id string) (number int64, at string) {
	digits, at, _ := strings.Cut(id, "-")
	number, _ = strconv.ParseInt(digits, 10, 64)
	return number, at
}
