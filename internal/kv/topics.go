package kv

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

// Listener receives the messages of a topic. Topics calls its listeners one at a time.
// They must not block, because that delays all others.
//
// Between Up and Down every message arrives. Before the first Up, and between
// Down and the next Up, messages may be missed.
type Listener interface {
	// Up is called when the server has confirmed the subscription.
	Up()
	// Down is called when the connection is lost, or within about 5 s after it has
	// stopped delivering messages.
	Down(err error)
	Message(payload string)
}

// Topics is the set of subscriptions of a process. It publishes test messages to itself,
// because a connection can stay open although it delivers no messages: its node may
// have left the cluster.
type Topics struct {
	avoid string // address of a node that did not deliver test messages; used by Serve only

	calls sync.Mutex // held while a listener is called; locked before mu

	mu      sync.Mutex
	byName  map[string]*topic
	changed map[string]bool // topics that Serve has to reconcile
	wake    chan struct{}
}

type topic struct {
	subscriptions []*Subscription // replaced, never changed in place
	requested     bool            // on the current connection
}

// Subscription is one listener's part in a topic.
type Subscription struct {
	topics   *Topics
	topic    string
	listener Listener
	up       atomic.Bool // changed while topics.mu is held
	firstUp  sync.Once
	ready    chan struct{} // closed after the first Up
}

// NewTopics returns an empty set.
func NewTopics() *Topics {
	return &Topics{byName: map[string]*topic{}, changed: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// Subscribe adds a listener to a topic. It does not wait for the server.
func (ts *Topics) Subscribe(name string, listener Listener) *Subscription {
	s := &Subscription{topics: ts, topic: name, listener: listener, ready: make(chan struct{})}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.byName[name]
	if t == nil {
		t = &topic{}
		ts.byName[name] = t
	}
	t.subscriptions = append(slices.Clip(t.subscriptions), s)
	ts.change(name)
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

// Close ends the subscription. A call of the listener may still be running when
// Close returns; no new one starts.
func (s *Subscription) Close() {
	ts := s.topics
	ts.mu.Lock()
	defer ts.mu.Unlock()
	s.up.Store(false)
	if t := ts.byName[s.topic]; t != nil {
		t.subscriptions = slices.DeleteFunc(slices.Clone(t.subscriptions), func(other *Subscription) bool { return other == s })
		ts.change(s.topic)
	}
}

// change makes Serve reconcile a topic. The caller holds mu.
func (ts *Topics) change(name string) {
	ts.changed[name] = true
	select {
	case ts.wake <- struct{}{}:
	default:
	}
}

// Serve keeps the subscriptions on one connection of client until the connection is
// lost or stops delivering messages, over is closed, or ctx ends. served reports
// whether the subscriptions were up in between. Only one call of Serve may run at a
// time.
func (ts *Topics) Serve(ctx context.Context, client rueidis.Client, over <-chan struct{}) (served bool, err error) {
	node, address := ts.choose(client)
	conn, release := node.Dedicate()
	defer release()
	l := &link{topics: ts, conn: conn, confirmed: make(chan struct{}, batchTopics), beacons: newBeacons(client)}
	confirm := func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			l.confirmed <- struct{}{}
		}
	}
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: l.message, OnSubscription: confirm})
	defer l.beacons.publishing.Close()
	ts.mu.Lock()
	for name := range ts.byName {
		ts.change(name)
	}
	ts.mu.Unlock()
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
		case <-ts.wake:
		case <-tick.C:
			if err = l.beacons.next(); err != nil {
				ts.avoid = address
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
func (ts *Topics) choose(client rueidis.Client) (node rueidis.Client, address string) {
	nodes := client.Nodes()
	if len(nodes) > 1 {
		delete(nodes, ts.avoid)
	}
	ts.avoid = ""
	for address, node := range nodes { // in random order
		return node, address
	}
	return client, ""
}

// link is the connection of one call of Serve.
type link struct {
	topics    *Topics
	conn      rueidis.DedicatedClient
	confirmed chan struct{} // one value for each confirmation
	beacons   *beacons
	lost      bool // guarded by topics.calls
}

// reconcile subscribes to new topics and unsubscribes from those without
// listeners.
func (l *link) reconcile(ctx context.Context) error {
	subscribe, unsubscribe, joined := l.topics.takeChanges()
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
// those that are subscribed and have a new listener.
func (ts *Topics) takeChanges() (subscribe, unsubscribe, joined []string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for name := range ts.changed {
		t := ts.byName[name]
		switch {
		case len(t.subscriptions) == 0:
			if t.requested {
				unsubscribe = append(unsubscribe, name)
			}
			delete(ts.byName, name)
		case t.requested:
			joined = append(joined, name)
		default:
			t.requested = true
			subscribe = append(subscribe, name)
		}
	}
	clear(ts.changed)
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

// up calls Up of all listeners of the topics that are not up yet.
func (l *link) up(names []string) {
	ts := l.topics
	ts.calls.Lock()
	defer ts.calls.Unlock()
	for _, name := range names {
		for _, s := range ts.setUp(name) {
			s.listener.Up()
			s.firstUp.Do(func() { close(s.ready) })
		}
	}
}

func (ts *Topics) setUp(name string) (changed []*Subscription) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, s := range ts.byName[name].subscriptions {
		if !s.up.Swap(true) {
			changed = append(changed, s)
		}
	}
	return changed
}

func (l *link) message(m rueidis.PubSubMessage) {
	ts := l.topics
	if m.Channel == l.beacons.topic {
		l.beacons.receive(m.Message)
		return
	}
	ts.calls.Lock()
	defer ts.calls.Unlock()
	ts.mu.Lock()
	var subscriptions []*Subscription
	if t := ts.byName[m.Channel]; t != nil && !l.lost {
		subscriptions = t.subscriptions
	}
	ts.mu.Unlock()
	for _, s := range subscriptions {
		if s.up.Load() {
			s.listener.Message(m.Message)
		}
	}
}

// down calls Down of all listeners that are up. Messages that arrive later on
// this connection are ignored.
func (l *link) down(err error) {
	ts := l.topics
	ts.calls.Lock()
	defer ts.calls.Unlock()
	l.lost = true
	var changed []*Subscription
	ts.mu.Lock()
	for _, t := range ts.byName {
		t.requested = false
		for _, s := range t.subscriptions {
			if s.up.Swap(false) {
				changed = append(changed, s)
			}
		}
	}
	ts.mu.Unlock()
	for _, s := range changed {
		s.listener.Down(err)
	}
}
