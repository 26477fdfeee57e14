package redisstore

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/pubsub"
	"telapi/internal/sleep"
)

// Announce tells every subscriber on every instance that a topic has changed.
// Announcing twice does no harm, so it is retried. In a cluster any node passes
// it on to all others.
func (s *Store) Announce(ctx context.Context, topic string) error {
	return s.do(ctx, "announce "+topic, func(ctx context.Context, c rueidis.Client) error {
		err := errors.New("no node is known")
		for _, node := range c.Nodes() {
			publish := node.B().Publish().Channel(kv.AnnounceTopic).Message(topic).Build()
			if err = node.Do(ctx, publish.ToRetryable()).Error(); err == nil {
				return nil
			}
		}
		return err
	})
}

// Subscribe hands announcements to listeners until ctx ends. The connection it holds,
// which is made again whenever it is lost, is the one by which channels are
// heard too; it also ends when the store is connected to anew, for that may be
// another server than the one listened to. One Subscribe runs at a time.
func (s *Store) Subscribe(ctx context.Context, listeners ...pubsub.Subscriber) {
	joined := make([]*pubsub.Subscription, len(listeners))
	for i, l := range listeners {
		joined[i] = s.topics.Subscribe(kv.AnnounceTopic, l)
	}
	defer func() {
		for _, m := range joined {
			m.Close()
		}
	}()
	pauses := newPauses()
	for ctx.Err() == nil {
		if now, err := s.connected(ctx); err == nil {
			served, _ := s.topics.Serve(ctx, now.client, now.over)
			if served {
				pauses.Reset()
			}
			select {
			case s.suspect <- struct{}{}:
			default:
			}
		}
		_ = sleep.For(ctx, pauses.NextBackOff())
	}
}
