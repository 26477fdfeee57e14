package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

const (
	// answerTimeout bounds how long the server may take to confirm.
	answerTimeout = 3 * time.Second

	// atOnce is how many topics one command names.
	atOnce = 500
)

// line is one connection's worth of subscriptions.
type line struct {
	hub     *Hub
	conn    rueidis.DedicatedClient
	cut     bool // guarded by hub.calls
	awaited chan string
}

// Serve listens over one connection of client until that is lost, over is
// closed or ctx ends. It tells whether anything was up in between. One Serve
// runs at a time.
func (h *Hub) Serve(ctx context.Context, client rueidis.Client, over <-chan struct{}) (served bool, err error) {
	conn, release := client.Dedicate()
	defer release()
	l := &line{hub: h, conn: conn, awaited: make(chan string, atOnce)}
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{OnSubscription: l.confirmed, OnMessage: l.message})
	h.mu.Lock()
	for name := range h.topics {
		h.change(name)
	}
	h.mu.Unlock()
	for err == nil {
		if err = l.reconcile(ctx); err != nil {
			break
		}
		served = true
		select {
		case <-h.wake:
		case err = <-lost:
			if err == nil {
				err = errors.New("the connection was closed")
			}
		case <-over:
			err = errors.New("the store was away")
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.down(fmt.Errorf("subscription lost: %w", err))
	conn.Close() // not back to the pool with subscriptions on it
	return served, err
}

// reconcile makes the server's subscriptions what the topics ask for.
func (l *line) reconcile(ctx context.Context) error {
	subscribe, unsubscribe := l.changes()
	for names := range slices.Chunk(unsubscribe, atOnce) {
		bounded, cancel := context.WithTimeout(ctx, answerTimeout)
		err := l.conn.Do(bounded, l.conn.B().Unsubscribe().Channel(names...).Build()).Error()
		cancel()
		if err != nil {
			return fmt.Errorf("unsubscribe: %w", err)
		}
	}
	for names := range slices.Chunk(subscribe, atOnce) {
		if err := l.subscribe(ctx, names); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
	}
	return nil
}

// subscribe waits for every confirmation, so that none is left to be taken for
// that of a later subscription to the same topic.
func (l *line) subscribe(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := l.conn.Do(ctx, l.conn.B().Subscribe().Channel(names...).Build()).Error(); err != nil {
		return err
	}
	for range names {
		select {
		case <-l.awaited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// changes takes the topics that have to be subscribed to and those that nobody
// listens to any more. Who joined a topic that is up needs no server.
func (l *line) changes() (subscribe, unsubscribe []string) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	h.mu.Lock()
	var risen []*Subscription
	for name := range h.changed {
		t := h.topics[name]
		switch {
		case t == nil:
		case len(t.members) == 0:
			if t.asked {
				unsubscribe = append(unsubscribe, name)
			}
			delete(h.topics, name)
		case !t.asked:
			t.asked = true
			subscribe = append(subscribe, name)
		case t.up:
			risen = append(risen, t.rise()...)
		}
	}
	clear(h.changed)
	h.mu.Unlock()
	up(risen)
	return subscribe, unsubscribe
}

// rise returns the members that were not up yet. The hub's mutex is held.
func (t *topic) rise() (risen []*Subscription) {
	t.up = true
	for _, m := range t.members {
		if !m.up {
			m.up = true
			risen = append(risen, m)
		}
	}
	return risen
}

func up(risen []*Subscription) {
	for _, m := range risen {
		m.listener.Up()
		select {
		case <-m.ready:
		default:
			close(m.ready)
		}
	}
}

func (l *line) confirmed(s rueidis.PubSubSubscription) {
	if s.Kind != "subscribe" {
		return
	}
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	if l.cut {
		return
	}
	h.mu.Lock()
	var risen []*Subscription
	if t := h.topics[s.Channel]; t != nil && t.asked {
		risen = t.rise()
	}
	h.mu.Unlock()
	up(risen)
	select {
	case l.awaited <- s.Channel:
	default:
	}
}

func (l *line) message(p rueidis.PubSubMessage) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	h.mu.Lock()
	var members []*Subscription
	if t := h.topics[p.Channel]; t != nil && t.up && !l.cut {
		members = t.members
	}
	h.mu.Unlock()
	for _, m := range members {
		if m.isUp() {
			m.listener.Message(p.Message)
		}
	}
}

func (m *Subscription) isUp() bool {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	return m.up
}

func (l *line) down(err error) {
	h := l.hub
	h.calls.Lock()
	defer h.calls.Unlock()
	l.cut = true
	h.mu.Lock()
	var fallen []*Subscription
	for _, t := range h.topics {
		t.asked, t.up = false, false
		for _, m := range t.members {
			if m.up {
				m.up = false
				fallen = append(fallen, m)
			}
		}
	}
	h.mu.Unlock()
	for _, m := range fallen {
		m.listener.Down(err)
	}
}
