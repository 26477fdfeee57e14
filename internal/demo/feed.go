package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/sleep"
)

const (
	feedHeartbeat   = 15 * time.Second
	feedSettle      = 50 * time.Millisecond  // time to collect events before they are sorted: sources deliver them out of order
	feedLinger      = 500 * time.Millisecond // time for the last events after the end of the session
	feedRetry       = time.Second
	feedReadTimeout = 10 * time.Second
	feedHistory     = 2000        // entries and messages read initially; about as many as are kept
	feedBuffer      = 256         // events; a slower reader misses events of the demo
	audioInterval   = time.Second // the feed shows one of about fifty audio frames
)

// Feed is the playground's view of a session: the entries and messages of its
// channel merged with the events of the demo.
type Feed struct {
	Hub      *Hub                                 // nil without the demo
	Observer func() (*callruntime.Runtime, error) // reads channels
}

// Open returns the timeline of a session in batches of JSON lines. The first batch
// contains past events. The sequence ends when ctx or the session ends. It can be
// iterated once. A session without a channel has no event for its end, so Open calls
// ended whenever there was no event for a while.
func (f *Feed) Open(ctx context.Context, sessionID string, ended func(context.Context) bool) (iter.Seq[[]byte], error) {
	observer, err := f.Observer()
	if err != nil {
		return nil, fmt.Errorf("open observer: %w", err)
	}
	reading, cancel := context.WithTimeout(ctx, feedReadTimeout)
	defer cancel()
	entries, err := observer.Entries(reading, sessionID, "", feedHistory)
	if err != nil {
		return nil, fmt.Errorf("read runtime stream: %w", err)
	}
	messages, err := observer.History(reading, sessionID, "", feedHistory)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	var past []Event
	var lastEntry, lastMessage string
	channelEnded := false
	for _, d := range entries {
		past, lastEntry, channelEnded = append(past, entryEvent(d.Entry, d.JSON)), d.Position, d.Entry.Kind == wire.KindChannelEnded
	}
	for _, d := range messages {
		past, lastMessage = append(past, messageEvent(d.Entry, d.JSON)), d.Position
	}

	return func(yield func([]byte) bool) {
		var sources sync.WaitGroup
		defer sources.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		events := make(chan Event, feedBuffer)
		recorded, unsubscribe := f.Hub.Subscribe(sessionID, events)
		defer unsubscribe()
		sources.Go(func() {
			if !channelEnded {
				watch(ctx, observer.Observe(sessionID, lastEntry), entryEvent, events)
			}
			_ = sleep.For(ctx, feedLinger)
			stop()
		})
		sources.Go(func() { watch(ctx, observer.ObserveHistory(sessionID, lastMessage), messageEvent, events) })

		batch := slices.Concat(past, recorded)
		for open, silent := true, false; open && yield(lines(batch)) && !(silent && ended(ctx)); {
			batch, open = gather(ctx, events)
			if silent = open && len(batch) == 0; silent {
				batch = []Event{{At: time.Now().UnixMilli(), Lane: LaneService, Kind: EventHeartbeat, Title: "no new events"}}
			}
		}
	}, nil
}

// watch converts the entries of an observed channel and sends them to events until
// the channel or ctx ends.
func watch(ctx context.Context, ch *callruntime.Channel, convert func(wire.Entry, jsontext.Value) Event, events chan<- Event) {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	var lastAudio time.Time
	for {
		d, err := ch.Receive(ctx)
		audio := d.Position == ""
		switch {
		case errors.Is(err, callruntime.ErrEnded) || ctx.Err() != nil:
			return
		case err != nil:
			_ = sleep.For(ctx, feedRetry)
			continue
		case audio && time.Since(lastAudio) < audioInterval:
			continue
		case audio:
			lastAudio = time.Now()
			d.JSON, _ = json.Marshal(d.Entry)
		}
		select {
		case events <- convert(d.Entry, d.JSON):
		case <-ctx.Done():
		}
	}
}

// gather waits for an event and the events that closely follow it. The batch is
// empty if there is none for feedHeartbeat. open is false after the last batch.
func gather(ctx context.Context, events <-chan Event) (batch []Event, open bool) {
	timeout := time.After(feedHeartbeat)
	for {
		select {
		case e := <-events:
			if len(batch) == 0 {
				timeout = time.After(feedSettle)
			}
			batch = append(batch, e)
		case <-timeout:
			return batch, true
		case <-ctx.Done():
			return batch, len(batch) > 0
		}
	}
}

// lines encodes events in order of time, one per line.
func lines(batch []Event) []byte {
	slices.SortStableFunc(batch, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	var b bytes.Buffer
	for _, e := range batch {
		_ = json.MarshalWrite(&b, e) // an Event can always be encoded
		b.WriteByte('\n')
	}
	return b.Bytes()
}
