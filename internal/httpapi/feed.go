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
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/sleep"
	"telapi/internal/timeline"
)

const (
	feedHeartbeat = 15 * time.Second
	feedSettles   = 50 * time.Millisecond  // its sources are not heard in step
	feedLingers   = 500 * time.Millisecond // after the session's end, for the last words
	feedRetries   = time.Second
	feedRemembers = 2000        // of each stream; about what is kept
	audioEvery    = time.Second // one of about fifty frames is shown
)

// feed streams what happens in a session, one event a line, from its beginning
// as far as that is remembered and until it ends.
func (s *Server) feed(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	id := query.Get("sessionId")
	if _, err := s.deps.Sessions.Get(r.Context(), who.TeamID, id); err != nil {
		return err
	}
	looker, err := s.deps.Playground.Onlooker()
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}
	f, err := openFeed(r.Context(), looker, s.deps.Playground.Events, id)
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}
	ctx, stop := context.WithCancel(w.(*exchange).whole)
	defer stop()
	defer context.AfterFunc(s.streams, stop)()
	events := f.follow(ctx)

	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the request was read; only its end is of interest now
	for batch, more := f.past, r.Method != http.MethodHead; more; batch, more = gather(events) {
		_ = out.SetWriteDeadline(time.Now().Add(writeWait))
		if _, err := w.Write(lines(batch)); err != nil {
			break
		}
		if err := out.Flush(); err != nil {
			break
		}
		if s.gone(ctx, who.TeamID, id, batch) {
			break
		}
	}
	stop()
	for range events { // until its sources have ended
	}
	return nil
}

// gone tells, when nothing happens, of a session that ended without a channel.
func (s *Server) gone(ctx context.Context, teamID, id string, batch []timeline.Event) bool {
	if len(batch) != 1 || batch[0].Kind != timeline.Heartbeat {
		return false
	}
	view, err := s.deps.Sessions.Get(ctx, teamID, id)
	return err == nil && !view.EndedAt.IsZero()
}

// sessionFeed merges what is on a session's channel with what the hub is told.
type sessionFeed struct {
	id      string
	looker  *callruntime.Runtime
	past    []timeline.Event // in order of time
	in, out string           // positions of the channel's streams where that ends
	ended   bool
	next    <-chan timeline.Event // of the hub
	leave   func()
}

// openFeed reads what is remembered.
func openFeed(ctx context.Context, looker *callruntime.Runtime, hub *timeline.Hub, id string) (_ *sessionFeed, err error) {
	f := &sessionFeed{id: id, looker: looker}
	f.past, f.next, f.leave = hub.Follow(id)
	defer func() {
		if err != nil {
			f.leave()
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
		f.past, f.in, f.ended = append(f.past, timeline.OfEntry(d.Entry, d.JSON)), d.Position, d.Entry.Kind == wire.KindChannelEnded
	}
	for _, d := range messages {
		f.past, f.out = append(f.past, timeline.ToBrowser(d.Entry, d.JSON)), d.Position
	}
	f.past = inOrder(f.past)
	return f, nil
}

// follow returns what happens from then on. The channel is closed at the end.
func (f *sessionFeed) follow(ctx context.Context) <-chan timeline.Event {
	ctx, stop := context.WithCancel(ctx)
	events := make(chan timeline.Event)
	tell := func(e timeline.Event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	var sources sync.WaitGroup
	sources.Go(func() {
		if !f.ended {
			watch(ctx, f.looker.Observe(f.id, f.in), timeline.OfEntry, tell)
		}
		time.AfterFunc(feedLingers, stop)
	})
	sources.Go(func() { watch(ctx, f.looker.Overhear(f.id, f.out), timeline.ToBrowser, tell) })
	sources.Go(func() {
		defer f.leave()
		for {
			select {
			case e := <-f.next:
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
func watch(ctx context.Context, ch *callruntime.Channel, event func(wire.Entry, jsontext.Value) timeline.Event, tell func(timeline.Event)) {
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

// gather waits for an event and those close behind it and puts them in order; a
// heartbeat when there is none for long. False: there are no more.
func gather(events <-chan timeline.Event) (batch []timeline.Event, more bool) {
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
			if len(batch) == 0 {
				batch = append(batch, timeline.Event{At: time.Now().UnixMilli(), Lane: timeline.Service, Kind: timeline.Heartbeat, Title: "still here"})
			}
			return inOrder(batch), true
		}
	}
}

func inOrder(batch []timeline.Event) []timeline.Event {
	slices.SortStableFunc(batch, func(a, b timeline.Event) int { return cmp.Compare(a.At, b.At) })
	return batch
}

func lines(batch []timeline.Event) []byte {
	var b bytes.Buffer
	for _, e := range batch {
		_ = json.MarshalWrite(&b, e) // into memory, of what was JSON before
		b.WriteByte('\n')
	}
	return b.Bytes()
}
