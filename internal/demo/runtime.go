package demo

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/background"
)

const (
	releaseTimeout = 2 * time.Second // claims expire by then
	// Bounds of the entries that are not committed. The service stops at larger ones.
	maxUncommitted      = 100
	maxUncommittedBytes = 512 << 10
)

// RuntimeOptions configure a Runtime.
type RuntimeOptions struct {
	Name   string
	Demo   Resources
	API    string      // URL of the API server
	TLS    *tls.Config // of the runtime's connection to it; may be nil
	Bot    string      // URL of the bot
	OwnBot bool        // it is the user's, and doesn't know the demo's phrases
	Client *http.Client
	// Recognizer recognizes speech. If it is nil, the bot repeats what it hears.
	Recognizer *Model
	Events     *Hub
	Log        *slog.Logger
}

// Runtime is a small call runtime that runs the sessions of the demo endpoint.
type Runtime struct {
	RuntimeOptions
	runtime *callruntime.Runtime
}

// NewRuntime starts to connect to the API server.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	r, err := callruntime.New(callruntime.Options{URL: o.API, Key: o.Demo.Key.Reveal(), Name: o.Name, TLS: o.TLS})
	if err != nil {
		return nil, fmt.Errorf("start demo runtime: %w", err)
	}
	return &Runtime{o, r}, nil
}

// Run accepts sessions until ctx ends, and then releases its calls to other runtimes.
func (r *Runtime) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer r.runtime.Close()
	defer running.Wait()
	for ctx.Err() == nil {
		ch, err := r.runtime.Accept(ctx, wire.Accept{Endpoints: []string{r.Demo.EndpointID}})
		if err != nil {
			if ctx.Err() == nil {
				r.Log.WarnContext(ctx, "demo runtime cannot accept sessions", "error", err)
				_ = background.Sleep(ctx, time.Second)
			}
			continue
		}
		running.Go(func() {
			err := r.serve(ctx, ch)
			if err != nil && ctx.Err() == nil && !errors.Is(err, callruntime.ErrClaimLost) {
				r.Log.WarnContext(ctx, "demo runtime aborted a call", "session_id", ch.ID, "error", err)
			}
		})
	}
}

// serve runs one call from its committed position to its end.
func (r *Runtime) serve(ctx context.Context, ch *callruntime.Channel) error {
	ctx, stop := context.WithCancel(ctx)
	e := &channelEffects{loopState: newLoopState(), RuntimeOptions: r.RuntimeOptions, ctx: ctx, ch: ch, asked: map[string]time.Time{}}
	defer func() {
		stop()
		e.closeWebRTC()
		e.background.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_ = ch.Close(closing) // if it fails, the claim expires
	}()
	c := newCall(ch.Mode, e, time.Now)
	c.ownBot = r.OwnBot
	if r.Recognizer == nil {
		c.echo, c.listener.maxLength = true, maxRepeated
	} else {
		e.utterances = make(chan utterance, maxUtterances)
		e.background.Go(e.recognizeAll)
	}
	e.publish(EventSession, r.Name+" claimed the call")
	c.resume(ch.Position != "", ch.WorkItems)
	return loop(ctx, ch, c, e.loopState)
}

// entrySource is the part of callruntime.Channel that loop uses.
type entrySource interface {
	Receive(ctx context.Context) (callruntime.Delivery, error)
	Commit(ctx context.Context, position string) error
}

// loop runs a call: it handles entries, reports of effects and timers, one at a time.
// It returns when the channel or ctx ends, or after the first error.
func loop(ctx context.Context, from entrySource, c *call, s *loopState) error {
	var receiving sync.WaitGroup
	defer receiving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	receiving.Go(func() {
		for ctx.Err() == nil {
			d, err := from.Receive(ctx)
			s.report(ctx, func(c *call) { s.handle(c, d, err) })
		}
	})
	for s.err == nil {
		var timer <-chan time.Time
		if name, at := c.nextTimer(); name != "" {
			timer = time.After(at.Sub(c.now()))
		}
		select {
		case report := <-s.reports:
			report(c)
		case <-timer:
			if len(s.reports) == 0 { // otherwise a report first: it may stop the timer
				c.fireTimers()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		s.commit(ctx, from, c)
	}
	if errors.Is(s.err, callruntime.ErrEnded) {
		return nil
	}
	return s.err
}

// loopState is shared by loop and effects.
type loopState struct {
	reports chan func(*call) // received entries and results of effects in the background
	entry   string           // position of the entry being handled, or empty
	trace   wire.Trace       // of the newest entry
	counts  map[string]int   // number of effects of that entry, by kind

	uncommitted      []handledEntry
	uncommittedBytes int

	err error // the first failure
}

// handledEntry is an entry that may be needed to restore the state of the call.
type handledEntry struct {
	callruntime.Delivery
	sentence int // the number of the sentence with its last words
}

func newLoopState() *loopState {
	return &loopState{reports: make(chan func(*call), 16), counts: map[string]int{}}
}

// report passes a function to loop.
func (s *loopState) report(ctx context.Context, f func(*call)) {
	select {
	case s.reports <- f:
	case <-ctx.Done():
	}
}

func (s *loopState) handle(c *call, d callruntime.Delivery, err error) {
	isEntry := d.Position != "" // neither audio nor a failure of Receive
	if err != nil && !isEntry {
		s.fail(err)
		return
	}
	s.entry, s.trace = d.Position, d.Entry.Trace
	clear(s.counts)
	if isEntry {
		c.effects.markRead(d)
	}
	if err == nil { // an entry that cannot be decoded is skipped
		c.handleEntry(d.Entry)
	}
	s.entry = ""
	if isEntry {
		s.uncommitted = append(s.uncommitted, handledEntry{d, c.sentences})
		s.uncommittedBytes += len(d.JSON)
	}
}

// commit commits the entries that a runtime which takes over does not need. It receives
// the others again and restores the state of the call from them.
func (s *loopState) commit(ctx context.Context, from entrySource, c *call) {
	var position string
	for len(s.uncommitted) > 0 {
		oldest := s.uncommitted[0]
		inUnfinishedSentence := c.stream.newest.Unfinished != "" && oldest.sentence == c.sentences
		needed := c.needsEntries() || inUnfinishedSentence
		if needed && len(s.uncommitted) <= maxUncommitted && s.uncommittedBytes <= maxUncommittedBytes {
			break
		}
		position = oldest.Position
		s.uncommitted, s.uncommittedBytes = s.uncommitted[1:], s.uncommittedBytes-len(oldest.JSON)
	}
	if position != "" && s.err == nil {
		s.fail(from.Commit(ctx, position))
	}
}

func (s *loopState) fail(err error) { s.err = cmp.Or(s.err, err) }

type timer string

const (
	comfort      timer = "comfort prompt"
	botTimeout   timer = "bot timeout"
	recognition  timer = "recognition resumes"
	interDigit   timer = "next digit"
	allDigits    timer = "all digits"
	playback     timer = "playback stuck"
	disconnect   timer = "disconnect"
	confirmation timer = "confirmation"
	audioGap     timer = "no audio"
)

type deadline struct {
	at   time.Time
	fire func()
}

func (c *call) after(name timer, d time.Duration, fire func()) {
	c.timers[name] = deadline{c.now().Add(d), fire}
}

// nextTimer returns the timer that fires first, or "" if none is set.
func (c *call) nextTimer() (first timer, at time.Time) {
	for name, d := range c.timers {
		if first == "" || d.at.Before(at) || d.at.Equal(at) && name < first {
			first, at = name, d.at
		}
	}
	return first, at
}

func (c *call) fireTimers() {
	for {
		name, at := c.nextTimer()
		if name == "" || at.After(c.now()) {
			return
		}
		fire := c.timers[name].fire
		delete(c.timers, name)
		c.effects.publish(EventTimer, "timer: "+string(name))
		fire()
	}
}
