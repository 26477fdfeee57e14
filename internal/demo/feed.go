package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/calls"
)

const (
	feedHeartbeat   = 15 * time.Second
	feedLinger      = 500 * time.Millisecond // time for the last events after the end of the session
	feedRetry       = time.Second
	feedReadTimeout = 10 * time.Second
	feedPage        = 8           // entries or messages that are read at once
	feedChunk       = 32 << 10    // bytes that are sent at once, and one event
	feedBuffer      = 128         // events that wait to be sent
	audioInterval   = time.Second // the feed shows one of about fifty audio frames
)

// Feed is the playground's view of a session, or of another channel: its entries and
// messages merged with the events of the demo. It needs little memory, no matter how
// much the channel holds and how slowly the client reads.
type Feed struct {
	Hub      *Hub
	Observer func() (*calls.Runtime, error) // reads channels
	// Unclaimed reports whether the browser of a session waits for a runtime.
	Unclaimed func(ctx context.Context, sessionID string) (bool, error)

	reading sync.Mutex // of one page at a time, so that many feeds leave the CPUs to other requests
}

// Open returns the timeline of a session as JSON lines, in chunks. Past events come
// first, one source after the other: the client puts events in order, see Event. The
// sequence ends when ctx or the session ends, or if the client reads too slowly; the client
// can open it again. It can be iterated once. A session without a channel has no event for
// its end, so Open calls ended whenever there was no event for a while.
func (f *Feed) Open(ctx context.Context, sessionID string, ended func(context.Context) bool) (iter.Seq[[]byte], error) {
	observer, err := f.Observer()
	if err != nil {
		return nil, fmt.Errorf("open observer: %w", err)
	}
	entries := &pager{feed: f, sessionID: sessionID, list: observer.Entries, convert: entryEvent}
	messages := &pager{feed: f, sessionID: sessionID, list: observer.History, convert: messageEvent}
	if err := errors.Join(entries.fill(ctx), messages.fill(ctx)); err != nil {
		return nil, fmt.Errorf("read channel: %w", err)
	}
	return func(yield func([]byte) bool) {
		var watchers sync.WaitGroup
		defer watchers.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		events := make(chan Event, feedBuffer)
		recorded, unsubscribe := f.Hub.Subscribe(sessionID, events)
		defer unsubscribe()
		// The demo's events come first: the page pairs its requests with the entries that answer them.
		sendPast := func(p *pager) bool { return send(p.events(ctx), yield) && p.err == nil }
		if !send(slices.Values(recorded), yield) || !sendPast(entries) || !sendPast(messages) {
			return
		}
		watchers.Go(func() {
			if !entries.ended {
				watch(ctx, observer.Observe(sessionID, entries.position), entryEvent, events, stop)
			}
			_ = background.Sleep(ctx, feedLinger)
			stop()
		})
		watchers.Go(func() {
			watch(ctx, observer.ObserveHistory(sessionID, messages.position), messageEvent, events, stop)
		})
		watchers.Go(func() { f.watchWaiting(ctx, observer.Observe(sessionID, ""), events) })
		for {
			batch, open := gather(ctx, events)
			silent := open && len(batch) == 0
			if silent {
				batch = []Event{{At: time.Now().UnixMilli(), Lane: LaneService, Kind: EventHeartbeat, Title: "no new events"}}
			}
			if !send(slices.Values(batch), yield) || !open || silent && ended(ctx) {
				return
			}
		}
	}, nil
}

// pager reads the past events of a channel in pages.
type pager struct {
	feed      *Feed
	sessionID string
	list      func(ctx context.Context, sessionID, from string, count int) ([]calls.Delivery, error)
	convert   func(calls.Delivery) Event

	page     []calls.Delivery // the last one that was read
	position string           // of its last entry
	ended    bool             // that is the end of the channel
	err      error            // of the last read
}

func (p *pager) fill(ctx context.Context) error {
	p.feed.reading.Lock()
	defer p.feed.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, feedReadTimeout)
	defer cancel()
	p.page, p.err = p.list(ctx, p.sessionID, p.position, feedPage+1)
	if errors.Is(p.err, calls.ErrNotFound) {
		p.err = nil // the browser has not connected yet
	}
	p.page = slices.DeleteFunc(p.page, func(d calls.Delivery) bool { return d.Position == p.position })
	if n := len(p.page); n > 0 {
		p.position, p.ended = p.page[n-1].Position, p.page[n-1].Entry.Kind == wire.KindChannelEnded
	}
	return p.err
}

// events returns the events of this page and all following ones. It ends after a failed read.
func (p *pager) events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for len(p.page) > 0 {
			for _, d := range p.page {
				if !yield(p.convert(d)) {
					return
				}
			}
			if p.fill(ctx) != nil {
				return
			}
		}
	}
}

// watch converts the entries of an observed channel and sends them to events until
// the channel or ctx ends. It calls stop if events is full.
func watch(ctx context.Context, ch *calls.Channel, convert func(calls.Delivery) Event, events chan<- Event, stop func()) {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	var lastAudio time.Time
	for {
		d, err := ch.Receive(ctx)
		audio := d.Position == ""
		switch {
		case errors.Is(err, calls.ErrEnded) || ctx.Err() != nil:
			return
		case err != nil:
			_ = background.Sleep(ctx, feedRetry)
			continue
		case audio && time.Since(lastAudio) < audioInterval:
			continue
		case audio:
			lastAudio = time.Now()
		}
		select {
		case events <- convert(d):
		default:
			stop()
			return
		}
	}
}

// gather waits for an event and returns it with all other waiting events. The batch is
// empty if no event arrives for feedHeartbeat. open is false after the last batch.
func gather(ctx context.Context, events <-chan Event) (batch []Event, open bool) {
	select {
	case e := <-events:
		batch = append(batch, e)
	case <-time.After(feedHeartbeat):
		return nil, true
	case <-ctx.Done():
	}
	for len(events) > 0 && len(batch) < feedBuffer { // nobody else receives
		batch = append(batch, <-events)
	}
	return batch, len(batch) > 0
}

// send encodes events, one per line, and yields them in chunks: at least one, which
// is empty without events. It returns false if yield does.
func send(events iter.Seq[Event], yield func([]byte) bool) bool {
	var chunk bytes.Buffer
	for e := range events {
		_ = json.MarshalWrite(&chunk, e, json.Deterministic(true)) // an Event can always be encoded; clients skip repeated lines
		chunk.WriteByte('\n')
		if chunk.Len() >= feedChunk {
			if !yield(chunk.Bytes()) {
				return false
			}
			chunk.Reset()
		}
	}
	return yield(chunk.Bytes())
}
