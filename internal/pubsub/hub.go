// Package pubsub owns how a process listens to many topics of the key-value
// store over one connection, however many there are and however often they and
// the connection come and go.
package pubsub

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Subscriber follows a topic. All listeners of a Hub are called one at a time and
// must not block: while one does, nothing else is heard.
//
// Between Up and Down every message arrives. Before the first Up and between
// Down and the next Up messages may have been missed.
type Subscriber interface {
	// Up is called when the server has confirmed the subscription.
	Up()
	// Down is called when it is lost, a vanished server included, which takes
	// some seconds to notice.
	Down(err error)
	Message(payload string)
}

// Hub is the set of topics a process listens to.
type Hub struct {
	calls sync.Mutex // held while a listener is called

	mu      sync.Mutex
	topics  map[string]*topic
	changed map[string]bool // topics that Serve has to look at
	wake    chan struct{}
}

type topic struct {
	members []*Subscription // replaced, never changed in place
	asked   bool            // for a subscription on the present connection
	up      bool            // and it was confirmed
}

// Subscription is one listener's part in a topic.
type Subscription struct {
	hub      *Hub
	topic    string
	listener Subscriber
	up       bool
	ready    chan struct{} // closed when first up
}

// New returns a Hub without a topic.
func New() *Hub {
	return &Hub{topics: map[string]*topic{}, changed: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// Subscribe adds a listener to a topic and returns at once.
func (h *Hub) Subscribe(name string, l Subscriber) *Subscription {
	m := &Subscription{hub: h, topic: name, listener: l, ready: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[name]
	if t == nil {
		t = &topic{}
		h.topics[name] = t
	}
	t.members = append(slices.Clip(t.members), m)
	h.change(name)
	return m
}

// Wait returns when the topic is up for the first time.
func (m *Subscription) Wait(ctx context.Context) error {
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("await the subscription: %w", ctx.Err())
	}
}

// Close ends the membership. A call of the listener that is under way may still
// be finishing; none begins.
func (m *Subscription) Close() {
	h := m.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	m.up = false
	t := h.topics[m.topic]
	if t == nil {
		return
	}
	t.members = slices.DeleteFunc(slices.Clone(t.members), func(other *Subscription) bool { return other == m })
	h.change(m.topic)
}

func (h *Hub) change(name string) {
	h.changed[name] = true
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
