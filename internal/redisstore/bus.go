package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/rueidis"
)

// Handler follows announcements. Its methods are called one at a time, and must
// not block: while they do, nothing else is heard.
//
// Between Up and Down every announcement arrives. Before the first Up and
// between Down and the next Up announcements may have been missed, so whatever
// relies on them must be read again on Up.
type Handler interface {
	// Up is called when the server has confirmed the subscription.
	Up()
	// Down is called when it is lost, a vanished server included, which takes
	// some seconds to notice.
	Down(err error)
	Message(topic string)
}

// Announce tells every subscriber on every instance that a topic has changed.
// Announcing twice does no harm, so it is retried. In a cluster any node passes
// it on to all others.
func (s *Store) Announce(ctx context.Context, topic string) error {
	return s.do(ctx, "announce "+topic, func(ctx context.Context, c rueidis.Client) error {
		err := errors.New("no node is known")
		for _, node := range c.Nodes() {
			publish := node.B().Publish().Channel(announceChannel).Message(topic).Build()
			if err = node.Do(ctx, publish.ToRetryable()).Error(); err == nil {
				return nil
			}
		}
		return err
	})
}

// Subscribe hands announcements to h until ctx ends. It holds one connection of
// its own, which is made again whenever it is lost.
func (s *Store) Subscribe(ctx context.Context, h Handler) {
	pause := newPauses()
	for ctx.Err() == nil {
		if now, err := s.connected(ctx); err == nil {
			line := &line{handler: h}
			err = line.listen(ctx, now)
			if line.hasBeenUp {
				pause.Reset()
			}
			select {
			case s.suspect <- err:
			default:
			}
		}
		sleep(ctx, pause.NextBackOff())
	}
}

// line is one connection's worth of announcements. Its lock puts the calls of
// the handler, which come from the reader of the connection and from listen, in
// one order with Down at the end.
type line struct {
	mu        sync.Mutex
	handler   Handler
	up        bool
	cut       bool
	hasBeenUp bool
}

// listen returns when the connection is lost or ctx ends; also when the store
// is connected to anew, for that may be another server than the one listened to.
func (l *line) listen(ctx context.Context, now *state) error {
	conn, release := now.client.Dedicate()
	defer release()
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{OnSubscription: l.subscribed, OnMessage: l.message})
	bounded, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := conn.Do(bounded, conn.B().Subscribe().Channel(announceChannel).Build()).Error()
	if err == nil {
		select {
		case err = <-lost:
		case <-now.over:
			err = errors.New("the store was away")
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.down(fmt.Errorf("subscription lost: %w", err))
	conn.Close() // not back to the pool with a subscription on it
	return err
}

func (l *line) subscribed(s rueidis.PubSubSubscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Kind == "subscribe" && !l.cut && !l.up {
		l.up, l.hasBeenUp = true, true
		l.handler.Up()
	}
}

func (l *line) message(m rueidis.PubSubMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up {
		l.handler.Message(m.Message)
	}
}

func (l *line) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up {
		l.handler.Down(err)
	}
	l.up, l.cut = false, true
}
