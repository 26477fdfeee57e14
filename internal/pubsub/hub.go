// Package pubsub multiplexes any number of subscriptions over one connection to
// the key-value store and restores them on the next connection.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	replyTimeout = 3 * time.Second
	batchTopics  = 500 // topics that one command names
)

// Subscriber receives the messages of a topic. A Hub calls its subscribers one at
// a time. They must not block, because that delays all others.
//
// Between Up and Down every message arrives. Before the first Up, and between
// Down and the next Up, messages may be missed.
type Subscriber interface {
	// Up is called when the server has confirmed the subscription.
	Up()
	// Down is called when the connection is lost, or within about 5 s after it has
	// stopped delivering messages.
	Down(err error)
	Message(payload string)
}

// Hub is the set of subscriptions of a process. It publishes test messages to itself,
// because a connection can stay open although it delivers no messages: its node may
// have left the cluster.
type Hub struct {
	avoid string // address of a node that did not deliver beacons; used by Serve only

	calls sync.Mutex // held while a subscriber is called; locked before mu

	mu      sync.Mutex
	topics  map[string]*topic
	changed map[string]bool // topics that Serve has to reconcile
	wake    chan struct{}
}

type topic struct {
	subscriptions []*Subscription // replaced, never changed in place
	requested     bool            // on the current connection
}

// Subscription is one subscriber's part in a topic.
type Subscription struct {
	hub        *Hub
	topic      string
	subscriber Subscriber
	up         atomic.Bool   // changed while hub.mu is held
	ready      chan struct{} // closed after the first Up
}

// New returns a Hub without topics.
func New() *Hub {
	return &Hub{topics: map[string]*topic{}, changed: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// Subscribe adds a subscriber to a topic. It does not wait for the server.
func (h *Hub) Subscribe(name string, subscriber Subscriber) *Subscription {
	s := &Subscription{hub: h, topic: name, subscriber: subscriber, ready: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[name]
	if t == nil {
		t = &topic{}
		h.topics[name] = t
	}
	t.subscriptions = append(slices.Clip(t.subscriptions), s)
	h.change(name)
	return s
}

// Wait returns after the first Up.
func (s *Subscription) Wait(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the subscription: %w", ctx.Err())
	}
}

// Close ends the subscription. A call of the subscriber may still be running when
// Close returns; no new one starts.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s.up.Store(false)
	if t := h.topics[s.topic]; t != nil {
		t.subscriptions = slices.DeleteFunc(slices.Clone(t.subscriptions), func(other *Subscription) bool { return other == s })
		h.change(s.topic)
	}
}

// change makes Serve reconcile a topic. The caller holds mu.
func (h *Hub) change(name string) {
	h.changed[name] = true
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Serve keeps the subscriptions on one connection of client until the connection is
// lost or stops delivering messages, over is closed, or ctx ends. served reports
// whether the subscriptions were up in between. Only one call of Serve may run at a
// time.
func (h *Hub) Serve(ctx context.Context, client rueidis.Client, over <-chan struct{}) (served bool, err error) {
	node, address := h.choose(client)
	conn, release := node.Dedicate()
	defer release()
	l := &link{hub: h, conn: conn, confirmed: make(chan struct{}, batchTopics), beacons: newBeacons(client)}
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: l.message, OnSubscription: func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			l.confirmed <- struct{}{}
		}
	}})
	publishing, stop := context.WithCancel(ctx)
	defer l.beacons.publishing.Wait()
	defer stop()
	h.mu.Lock()
	for name := range h.topics {
		h.change(name)
	}
	h.mu.Unlock()
	if err = l.subscribe(ctx, []string{l.beacons.topic}); err != nil {
		err = fmt.Errorf("subscribe: %w", err)
	}
	tick := time.NewTicker(beaconInterval)
	defer tick.Stop()
	for err == nil {
		if err = l.reconcile(ctx); err != nil {
			break
		}
		served = true
		select {
		case <-h.wake:
		case <-tick.C:
			if err = l.beacons.next(publishing); err != nil {
				h.avoid = address
			}
		case err = <-lost:
			if err == nil {
				err = errors.New("connection closed")
			}
		case <-over:
			err = errors.New("store was unavailable")
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.down(fmt.Errorf("subscription lost: %w", err))
	conn.Close() // its subscriptions must not return to the pool
	return served, err
}

// choose returns a node for the subscriptions. If there are several, it does not
// return the one that failed last: that node may have left the cluster, which the
// client may not have noticed yet.
func (h *Hub) choose(client rueidis.Client) (node rueidis.Client, address string) {
	nodes := client.Nodes()
	if len(nodes) > 1 {
		delete(nodes, h.avoid)
	}
	h.avoid = ""
	for address, node := range nodes { // in random order
		return node, address
	}
	return client, ""
}

// link is the connection of one call of Serve.
type link struct {
	hub       *Hub
	conn      rueidis.DedicatedClient
	confirmed chan struct{} // one value for each confirmation
	beacons   *beacons
	lost      bool // guarded by hub.calls
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

// subscribe subscribes to topics and waits for all confirmations, so that none is
// mistaken for the confirmation of a later call.
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
	if m.Channel == l.beacons.topic {
		l.beacons.receive(m.Message)
		return
	}
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
