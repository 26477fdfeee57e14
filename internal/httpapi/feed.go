package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/sleep"
)

const (
	feedHeartbeat = 15 * time.Second
	feedSettles   = 50 * time.Millisecond  // its sources are not heard in step
	feedLingers   = 500 * time.Millisecond // after the session's end, for the last words
	feedRetries   = time.Second
	feedRemembers = 2000        // of each stream; about what is kept
	audioEvery    = time.Second // one of about fifty frames is shown
	feedBuffer    = 256         // events of the demo; a slower reader misses some
)

// FeedEvent is one event of the playground's feed. It is written as a line of JSON.
type FeedEvent interface {
	UnixMilli() int64 // when it happened
}

// FeedSource converts what happens in a session to events. Package demo implements it.
type FeedSource interface {
	EntryEvent(entry wire.Entry, raw jsontext.Value) FeedEvent
	MessageEvent(message wire.Entry, raw jsontext.Value) FeedEvent
	Heartbeat() FeedEvent
	// Subscribe returns recorded events of the demo in a session and calls deliver,
	// which does not block, for each later one until cancel is called.
	Subscribe(sessionID string, deliver func(FeedEvent)) (past []FeedEvent, cancel func())
}

// feed streams what happens in a session, one event a line, from its beginning
// as far as that is remembered and until it ends.
func (s *Server) feed(x *exchange, r *http.Request) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	id := query.Get("sessionId")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	looker, err := s.deps.Playground.Onlooker()
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}
	f, err := openFeed(r.Context(), looker, s.deps.Playground.Feed, id)
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}
	ctx, stop := context.WithCancel(x.ctx)
	defer stop()
	defer context.AfterFunc(s.streams, stop)()
	events := f.follow(ctx)

	x.Header().Set("Content-Type", "application/x-ndjson")
	x.Header().Set("Cache-Control", "no-store")
	x.Header().Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(x)
	_ = out.SetReadDeadline(time.Time{}) // the request was read; only its end is of interest now
	write := func(batch []FeedEvent) error {
		_ = out.SetWriteDeadline(time.Now().Add(socketWriteTimeout))
		if _, err := x.Write(lines(batch)); err != nil {
			return err
		}
		return out.Flush()
	}
	for open := r.Method != http.MethodHead && write(f.past) == nil; open; {
		batch, more := gather(events)
		ended := false
		if more && len(batch) == 0 {
			batch = []FeedEvent{s.deps.Playground.Feed.Heartbeat()}
			ended = s.sessionEnded(ctx, x.principal.TeamID, id)
		}
		open = more && write(batch) == nil && !ended
	}
	stop()
	for range events { // until its sources have ended
	}
	return nil
}

// sessionEnded reports whether a session has ended, which its channel does not show if it never had one.
func (s *Server) sessionEnded(ctx context.Context, teamID, id string) bool {
	view, err := s.deps.Sessions.Get(ctx, teamID, id)
	return err == nil && !view.EndedAt.IsZero()
}

// sessionFeed merges what is on a session's channel with what the hub is told.
type sessionFeed struct {
	id      string
	looker  *callruntime.Runtime
	source  FeedSource
	past    []FeedEvent // in order of time
	in, out string      // positions of the channel's streams where that ends
	ended   bool
	demo    chan FeedEvent
	cancel  func() // of the subscription to demo
}

// openFeed reads what is remembered.
func openFeed(ctx context.Context, looker *callruntime.Runtime, source FeedSource, id string) (_ *sessionFeed, err error) {
	f := &sessionFeed{id: id, looker: looker, source: source, demo: make(chan FeedEvent, feedBuffer)}
	f.past, f.cancel = source.Subscribe(id, func(e FeedEvent) {
		select {
		case f.demo <- e:
		default:
		}
	})
	defer func() {
		if err != nil {
			f.cancel()
		}
	}()
	entries, err := looker.Entries(ctx, id, "", feedRemembers)
	if err != nil {
		return nil, fmt.Errorf("read the stream: %w", err)
	}
	messages, err := looker.History(ctx, id, "", feedRemembers)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	for _, d := range entries {
		f.past, f.in, f.ended = append(f.past, source.EntryEvent(d.Entry, d.JSON)), d.Position, d.Entry.Kind == wire.KindChannelEnded
	}
	for _, d := range messages {
		f.past, f.out = append(f.past, source.MessageEvent(d.Entry, d.JSON)), d.Position
	}
	f.past = inOrder(f.past)
	return f, nil
}

// follow returns what happens from then on. The channel is closed at the end.
func (f *sessionFeed) follow(ctx context.Context) <-chan FeedEvent {
	ctx, stop := context.WithCancel(ctx)
	events := make(chan FeedEvent)
	tell := func(e FeedEvent) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	var sources sync.WaitGroup
	sources.Go(func() {
		if !f.ended {
			watch(ctx, f.looker.Observe(f.id, f.in), f.source.EntryEvent, tell)
		}
		time.AfterFunc(feedLingers, stop)
	})
	sources.Go(func() { watch(ctx, f.looker.ObserveHistory(f.id, f.out), f.source.MessageEvent, tell) })
	sources.Go(func() {
		defer f.cancel()
		for {
			select {
			case e := <-f.demo:
				tell(e)
			case <-ctx.Done():
				return
			}
		}
	})
	go func() {
		sources.Wait()
		stop()
		close(events)
	}()
	return events
}

// watch tells of what an onlooker receives until the channel or ctx ends.
func watch(ctx context.Context, ch *callruntime.Channel, event func(wire.Entry, jsontext.Value) FeedEvent, tell func(FeedEvent)) {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	var heard time.Time
	for {
		d, err := ch.Receive(ctx)
		switch {
		case errors.Is(err, callruntime.ErrEnded) || ctx.Err() != nil:
			return
		case err != nil:
			_ = sleep.For(ctx, feedRetries)
			continue
		case d.Position == "" && time.Since(heard) < audioEvery:
			continue
		case d.Position == "":
			heard = time.Now()
			d.JSON, _ = json.Marshal(d.Entry)
		}
		tell(event(d.Entry, d.JSON))
	}
}

// gather waits for an event and those that closely follow it, and sorts them. The
// batch is empty if none comes for feedHeartbeat. It returns false at the end.
func gather(events <-chan FeedEvent) (batch []FeedEvent, more bool) {
	enough := time.After(feedHeartbeat)
	for {
		select {
		case e, open := <-events:
			if !open {
				return inOrder(batch), len(batch) > 0
			}
			if len(batch) == 0 {
				enough = time.After(feedSettles)
			}
			batch = append(batch, e)
		case <-enough:
			return inOrder(batch), true
		}
	}
}

func inOrder(batch []FeedEvent) []FeedEvent {
	slices.SortStableFunc(batch, func(a, b FeedEvent) int { return cmp.Compare(a.UnixMilli(), b.UnixMilli()) })
	return batch
}

func lines(batch []FeedEvent) []byte {
	var b bytes.Buffer
	for _, e := range batch {
		_ = json.MarshalWrite(&b, e) // into memory, of what was JSON before
		b.WriteByte('\n')
	}
	return b.Bytes()
}
