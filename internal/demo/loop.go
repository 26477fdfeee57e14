package demo

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"telapi/callruntime"
)

// entrySource is the part of callruntime.Channel that loop uses.
type entrySource interface {
	Receive(ctx context.Context) (callruntime.Delivery, error)
	Commit(ctx context.Context, position string) error
}

// received is the result of one Receive.
type received struct {
	callruntime.Delivery
	err error
}

// loop runs a call: it handles entries, reports of effects and timers one at a time
// and commits each entry once it is handled. It returns at the end of the channel or
// of ctx, or with the first error.
func loop(ctx context.Context, from entrySource, c *call, s *loopState) error {
	var receiving sync.WaitGroup
	defer receiving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	deliveries := make(chan received)
	receiving.Go(func() {
		for {
			d, err := from.Receive(ctx)
			select {
			case deliveries <- received{d, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	for s.err == nil {
		var timer <-chan time.Time
		if name, at := c.nextTimer(); name != "" {
			timer = time.After(at.Sub(c.now()))
		}
		select {
		case d := <-deliveries:
			if d.err != nil && d.Position == "" {
				if errors.Is(d.err, callruntime.ErrEnded) {
					return nil
				}
				return d.err
			}
			s.beginEntry(d.Position)
			if d.err == nil { // an entry that cannot be decoded is skipped
				c.handleEntry(d.Entry)
			}
			s.beginEntry("")
			if d.Position != "" && s.err == nil { // audio has no position
				if err := from.Commit(ctx, d.Position); err != nil {
					return err
				}
			}
		case report := <-s.reports:
			report(c)
		case <-timer:
			c.fireTimers()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.err
}

// loopState is shared by loop and effects.
type loopState struct {
	reports chan func(*call) // results of effects in the background
	entry   string           // position of the entry being handled, or empty
	effects int              // number of effects of that entry
	err     error            // the first failure
}

func newLoopState() *loopState { return &loopState{reports: make(chan func(*call), 16)} }

func (s *loopState) beginEntry(position string) { s.entry, s.effects = position, 0 }

func (s *loopState) fail(err error) { s.err = cmp.Or(s.err, err) }

// timer names a timer of a call.
type timer string

const (
	comfort      timer = "comfort prompt"
	botTimeout   timer = "give up on bot"
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
