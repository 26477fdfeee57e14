package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/sleep"
)

const (
	releaseTimeout     = 5 * time.Second
	maxRestoredEntries = 2000 // more than the number of committed entries that are kept
)

// RuntimeOptions configure a Runtime.
type RuntimeOptions struct {
	Name   string
	Store  rueidis.ClientOption
	Demo   Resources
	API    string // URL of the API server
	Bot    string // URL of the bot
	Client *http.Client
	// Recognizer recognizes speech. If it is nil, the bot repeats what it hears.
	Recognizer *Model
	Events     *Hub // may be nil
	Log        *slog.Logger
}

// Runtime is a small call runtime that runs the demo team's sessions.
type Runtime struct {
	RuntimeOptions
	runtime *calls.Runtime
}

// NewRuntime connects to the key-value store.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	r, err := calls.New(calls.Options{Store: o.Store, Name: o.Name})
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
		ch, err := r.runtime.Accept(ctx, func(o wire.Offer) bool { return o.TeamID == r.Demo.TeamID })
		if err != nil {
			if ctx.Err() == nil {
				r.Log.WarnContext(ctx, "demo runtime cannot accept sessions", "error", err)
				_ = sleep.For(ctx, time.Second)
			}
			continue
		}
		running.Go(func() {
			err := r.serve(ctx, ch)
			if err != nil && ctx.Err() == nil && !errors.Is(err, calls.ErrClaimLost) {
				r.Log.WarnContext(ctx, "demo runtime aborted a call", "session_id", ch.ID, "error", err)
			}
		})
	}
}

// serve runs one call from its committed position to its end.
func (r *Runtime) serve(ctx context.Context, ch *calls.Channel) error {
	ctx, stop := context.WithCancel(ctx)
	e := &channelEffects{loopState: newLoopState(), RuntimeOptions: r.RuntimeOptions, ctx: ctx, ch: ch}
	e.markEntry = e.markRead
	defer func() {
		stop()
		e.closeCall()
		e.background.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_ = ch.Close(closing) // if it fails, the claim expires
	}()
	c := newCall(ch.Mode, e, time.Now)
	c.echo = r.Recognizer == nil
	e.startMedia()
	past, err := r.restore(ctx, c, ch)
	if err != nil {
		return fmt.Errorf("read committed entries: %w", err)
	}
	if err := askAgain(ctx, c, ch, past); err != nil {
		return fmt.Errorf("list work items: %w", err)
	}
	e.publish("", EventSession, r.Name+" claimed the call", nil)
	c.resumeCall()
	return loop(ctx, ch, c, e.loopState)
}

// restore restores the state of a call from the committed entries and returns them.
func (r *Runtime) restore(ctx context.Context, c *call, ch *calls.Channel) ([]calls.Delivery, error) {
	if ch.Committed == "" {
		return nil, nil
	}
	past, err := r.runtime.Entries(ctx, ch.ID, "", maxRestoredEntries)
	for i, d := range past {
		c.restore(d.Entry)
		if d.Position == ch.Committed {
			past = past[:i+1]
			break
		}
	}
	return past, err
}

// Bounds of the effects and parts in which askAgain looks for a question.
const (
	maxQuestionEffects = 4
	maxQuestionParts   = 4
)

// askAgain repeats the questions of an earlier runtime that the bot has not answered,
// because both may have been stopped. It cancels questions that are not in the entries,
// such as collected digits: they would delay the answers to later questions.
func askAgain(ctx context.Context, c *call, ch *calls.Channel, past []calls.Delivery) error {
	items, err := ch.WorkItems(ctx)
	if err != nil || len(items) == 0 {
		return err
	}
	open := map[string]bool{}
	for _, item := range items {
		open[item.ID] = !item.Parked
	}
	for _, d := range past {
		text := chatText(d.Entry)
		for n := 1; text != "" && n <= maxQuestionEffects; n++ {
			q := question{Text: text, Part: 1, itemID: effectID(ch.ID, d.Position, n)}
			for ; q.Part <= maxQuestionParts; q = q.next() {
				if open[q.itemID] {
					delete(open, q.itemID)
					c.ask(q)
				}
			}
		}
	}
	for id, unanswered := range open {
		if unanswered {
			c.botUnreachable(id)
		}
	}
	return nil
}

// chatText returns the text of an entry that is a browser's chat message, or "".
func chatText(e wire.Entry) string {
	var content struct {
		Text string `json:"text"`
	}
	if e.Kind == wire.KindFrame && e.Message.Type == wire.TypeChat && json.Unmarshal(e.Message.Chat, &content) == nil {
		return content.Text
	}
	return ""
}

// entrySource is the part of calls.Channel that loop uses.
type entrySource interface {
	Receive(ctx context.Context) (calls.Delivery, error)
	Commit(ctx context.Context, position string) error
}

// loop runs a call: it handles entries, reports of effects and timers, one at a time.
// It commits each entry after it is handled. It returns when the channel or ctx ends,
// or after the first error.
func loop(ctx context.Context, from entrySource, c *call, s *loopState) error {
	var receiving sync.WaitGroup
	defer receiving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	receiving.Go(func() {
		for ctx.Err() == nil {
			d, err := from.Receive(ctx)
			s.report(ctx, func(c *call) { s.handle(ctx, from, c, d, err) })
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
			c.fireTimers()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if errors.Is(s.err, calls.ErrEnded) {
		return nil
	}
	return s.err
}

// loopState is shared by loop and effects.
type loopState struct {
	reports chan func(*call) // received entries and results of effects in the background
	entry   string           // position of the entry being handled, or empty
	trace   wire.Trace       // of the newest entry
	effects int              // number of effects of that entry

	readAt    time.Time            // when the entry was read
	asked     map[string]time.Time // when the result of a work item was requested
	markEntry func(calls.Delivery) // reports that an entry is handled now; may be nil
	err       error                // the first failure
}

func newLoopState() *loopState {
	return &loopState{reports: make(chan func(*call), 16), asked: map[string]time.Time{}}
}

// report passes a function to loop.
func (s *loopState) report(ctx context.Context, f func(*call)) {
	select {
	case s.reports <- f:
	case <-ctx.Done():
	}
}

// handle handles the result of one Receive.
func (s *loopState) handle(ctx context.Context, from entrySource, c *call, d calls.Delivery, err error) {
	if err != nil && d.Position == "" {
		s.fail(err)
		return
	}
	if s.beginEntry(d.Position); d.Position != "" && s.markEntry != nil {
		s.markEntry(d)
	}
	s.trace = d.Entry.Trace
	if err == nil { // an entry that cannot be decoded is skipped
		c.handleEntry(d.Entry)
	}
	s.beginEntry("")
	if d.Position != "" && s.err == nil { // audio has no position
		s.fail(from.Commit(ctx, d.Position))
	}
}

func (s *loopState) beginEntry(position string) { s.entry, s.effects = position, 0 }

func (s *loopState) fail(err error) { s.err = cmp.Or(s.err, err) }

// timer is the name of a timer.
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
)

// deadline is when a timer fires and what it does.
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

// fireTimers fires all timers that are due.
func (c *call) fireTimers() {
	for {
		name, at := c.nextTimer()
		if name == "" || at.After(c.now()) {
			return
		}
		fire := c.timers[name].fire
		delete(c.timers, name)
		c.effects.publish("", EventTimer, "timer: "+string(name), nil)
		fire()
	}
}
