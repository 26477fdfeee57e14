package redisstore

import (
	"context"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/pubsub"
	"telapi/internal/sleep"
)

// Announce notifies the subscribers of every instance that a topic has changed.
// It is retried, since repeated announcements are harmless. In a cluster every
// node passes announcements on to all others.
func (s *Store) Announce(ctx context.Context, topic string) error {
	return s.do(ctx, "announce "+topic, func(ctx context.Context, c rueidis.Client) error {
		err := errNoNode
		for _, node := range c.Nodes() {
			publish := node.B().Publish().Channel(kv.AnnounceTopic).Message(topic).Build()
			if err = node.Do(ctx, publish.ToRetryable()).Error(); err == nil {
				return nil
			}
		}
		return err
	})
}

// Subscribe delivers announcements to subscribers until ctx ends. Its connection
// also carries the messages of Channels.Subscribe. It is replaced when it is lost,
// and when the store reconnects, which may be to another server. Only one Subscribe
// runs at a time.
func (s *Store) Subscribe(ctx context.Context, subscribers ...pubsub.Subscriber) {
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
		_ = sleep.For(ctx, delays.NextBackOff())
	}
}
