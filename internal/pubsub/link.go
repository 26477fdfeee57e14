package pubsub

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"
)

// link is the connection of one call of Serve.
type link struct {
	hub       *Hub
	conn      rueidis.DedicatedClient
	confirmed chan struct{} // one value for each confirmation
	lost      bool          // guarded by hub.calls
}

// reconcile subscribes to new topics and unsubscribes from those without
// subscribers.
func (l *link) reconcile(ctx context.Context) error {
	subscribe, unsubscribe, joined := l.hub.takeChanges()
	l.up(joined)
	for names := range slices.Chunk(unsubscribe, batchTopics) {
		bounded, cancel := context.WithTimeout(ctx, replyTimeout)
		err := l.conn.Do(bounded, l.conn.B().Unsubscribe().Channel(names...).Build()).Error()
		cancel()
		if err != nil {
			return fmt.Errorf("unsubscribe: %w", err)
		}
	}
	for names := range slices.Chunk(subscribe, batchTopics) {
		if err := l.subscribe(ctx, names); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		l.up(names)
	}
	return nil
}

// takeChanges returns the topics to subscribe to, those to unsubscribe from, and
// those that are subscribed and have a new subscriber.
func (h *Hub) takeChanges() (subscribe, unsubscribe, joined []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.changed {
		t := h.topics[name]
		switch {
		case t == nil:
		case len(t.subscriptions) == 0:
			if t.requested {
				unsubscribe = append(unsubscribe, name)
			}
			delete(h.topics, name)
		case t.requested:
			joined = append(joined, name)
		default:
			t.requested = true
			subscribe = append(subscribe, name)
		}
	}
	clear(h.changed)
	return subscribe, unsubscribe, joined
}

// subscribe waits for all confirmations, so that none is mistaken for that of a
// later subscription.
func (l *link) subscribe(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if err := l.conn.Do(ctx, l.conn.B().Subscribe().Channel(names...).Build()).Error(); err != nil {
		return err
	}
	for range names {
		select {
		case <-l.confirmed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (l *link) confirm(s rueidis.PubSubSubscription) {
	if s.Kind == "subscribe" {
		l.confirmed <- struct{}{}
	}
}

// up calls Up of all subscribers of the topics that are not up yet.
func (l *link) up(names []string) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	for _, name := range names {
		for _, s := range h.setUp(name) {
			s.subscriber.Up()
			select {
			case <-s.ready:
			default:
				close(s.ready)
			}
		}
	}
}

func (h *Hub) setUp(name string) (changed []*Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.topics[name].subscriptions {
		if !s.up.Swap(true) {
			changed = append(changed, s)
		}
	}
	return changed
}

func (l *link) message(m rueidis.PubSubMessage) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	h.mu.Lock()
	var subscriptions []*Subscription
	if t := h.topics[m.Channel]; t != nil && !l.lost {
		subscriptions = t.subscriptions
	}
	h.mu.Unlock()
	for _, s := range subscriptions {
		if s.up.Load() {
			s.subscriber.Message(m.Message)
		}
	}
}

// down calls Down of all subscribers that are up. Messages that arrive later on
// this connection are ignored.
func (l *link) down(err error) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	l.lost = true
	var changed []*Subscription
	h.mu.Lock()
	for _, t := range h.topics {
		t.requested = false
		for _, s := range t.subscriptions {
			if s.up.Swap(false) {
				changed = append(changed, s)
			}
		}
	}
	h.mu.Unlock()
	for _, s := range changed {
		s.subscriber.Down(err)
	}
}
