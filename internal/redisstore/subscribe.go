package redisstore

import (
	"context"
	"strings"

	"github.com/redis/rueidis"

	"telapi/internal/background"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
)

// Announce notifies the subscribers of every instance that a topic has changed.
// Announcements may arrive repeatedly, which is harmless. In a cluster every node
// passes them on to all others. They are published through every node all the same, because a
// node that has left the cluster reaches only the instances that still subscribe through it.
// Announce fails if no node accepts the announcement.
func (s *Store) Announce(ctx context.Context, topic string) error {
	return s.do(ctx, "announce "+topic, func(ctx context.Context, c rueidis.Client) error {
		return s.onAnyNode(ctx, c, func(ctx context.Context, node rueidis.Client) error {
			return node.Do(ctx, node.B().Publish().Channel(kv.AnnounceTopic).Message(topic).Build().ToRetryable()).Error()
		})
	})
}

// Subscribe delivers announcements to subscribers until ctx ends. Its connection
// also carries the messages of Channels.Subscribe. It is replaced when it is lost,
// and when the store reconnects, which may be to another server. Only one Subscribe
// runs at a time.
func (s *Store) Subscribe(ctx context.Context, subscribers ...kv.Listener) {
	for _, subscriber := range subscribers {
		defer s.topics.Subscribe(kv.AnnounceTopic, subscriber).Close() //nolint:gocritic // until Subscribe returns
	}
	delays := newBackoff()
	for ctx.Err() == nil {
		if current, err := s.connected(ctx); err == nil {
			served, _ := s.topics.Serve(ctx, current.client, current.replaced)
			if served {
				delays.Reset()
			}
			s.requestProbe()
		}
		_ = background.Sleep(ctx, delays.Next())
	}
}

// Subscribe implements channel.Store. Messages are delivered while Store.Subscribe runs.
func (c *Channels) Subscribe(ctx context.Context, channelID string, subscriber channel.Subscriber) (stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	subscription := c.store.topics.Subscribe(kv.BrowserTopic(channelID), &noticeParser{subscriber: subscriber})
	if err := subscription.Wait(ctx); err != nil {
		subscription.Close()
		return nil, fault.Unavailable(storeName, err)
	}
	return subscription.Close, nil
}

// SendAudio implements channel.Store.
func (c *Channels) SendAudio(ctx context.Context, channelID string, json []byte) error {
	return c.store.do(ctx, "send audio", func(ctx context.Context, client rueidis.Client) error {
		return kv.PublishAudio(ctx, client, kv.RuntimeTopic(channelID), rueidis.BinaryString(json))
	})
}

// noticeParser parses the notices of a channel for a channel.Subscriber.
type noticeParser struct {
	subscriber channel.Subscriber
	wasDown    bool
}

func (p *noticeParser) Down(error) { p.wasDown = true }

func (p *noticeParser) Up() {
	if p.wasDown {
		p.subscriber.Gap()
	}
}

func (p *noticeParser) Message(payload string) {
	if payload == "" {
		return
	}
	switch rest := payload[1:]; kv.Notice(payload[0]) {
	case kv.NoticeMessage:
		if after, list, ok := parseMessages(rest); ok {
			p.subscriber.Messages(after, list)
		} else {
			p.subscriber.Gap()
		}
	case kv.NoticeAudio:
		p.subscriber.Audio([]byte(rest))
	case kv.NoticeReplaced:
		p.subscriber.Replaced(rest)
	case kv.NoticeEnded:
		p.subscriber.Closed(rest)
	}
}

// parseMessages parses the content of a NoticeMessage. ok is false if that is not possible.
func parseMessages(notice string) (after channel.Cursor, list []channel.Message, ok bool) {
	head, lines, _ := strings.Cut(notice, "\n")
	epoch, ids, _ := strings.Cut(head, " ")
	before, last, _ := strings.Cut(ids, " ")
	ok = kv.Items(before, last, lines, func(id, message string) {
		list = append(list, channel.Message{Cursor: channel.Cursor{Epoch: epoch, ID: id}, JSON: []byte(message)})
	})
	return channel.Cursor{Epoch: epoch, ID: before}, list, ok
}
