package demo

import (
	"cmp"
	"context"
	"errors"
	"time"

	"telapi/callruntime"
)

// source is where a call's entries come from, and where it stands with them.
type source interface {
	Receive(ctx context.Context) (callruntime.Delivery, error)
	Commit(ctx context.Context, position string) error
}

// received is one answer of a source.
type received struct {
	callruntime.Delivery
	err error
}

// loop lets a call live: it takes what the stream brings, what the hands report
// and what the timers say, one after the other, and commits what was dealt with.
// It ends with the channel, with ctx, or with what failed.
func loop(ctx context.Context, from source, c *call, l *ledger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	deliveries := make(chan received)
	go func() {
		for {
			d, err := from.Receive(ctx)
			select {
			case deliveries <- received{d, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for l.err == nil {
		var due <-chan time.Time
		if name, at := c.due(); name != "" {
			due = time.After(at.Sub(c.now()))
		}
		select {
		case d := <-deliveries:
			if d.err != nil && d.Position == "" {
				if errors.Is(d.err, callruntime.ErrEnded) {
					return nil
				}
				return d.err
			}
			l.begin(d.Position)
			if d.err == nil { // what this version cannot read is passed over
				c.entry(d.Entry)
			}
			l.begin("")
			if d.Position != "" && l.err == nil { // audio has none
				if err := from.Commit(ctx, d.Position); err != nil {
					return err
				}
			}
		case happened := <-l.reports:
			happened(c)
		case <-due:
			c.tick()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return l.err
}

// ledger is what loop and hands share: reports of what was begun, the entry
// that is being dealt with, and the first failure.
type ledger struct {
	reports chan func(*call)
	entry   string // empty: none
	did     int    // things on behalf of it
	err     error
}

func newLedger() *ledger { return &ledger{reports: make(chan func(*call), 16)} }

func (l *ledger) begin(position string) { l.entry, l.did = position, 0 }

func (l *ledger) fail(err error) { l.err = cmp.Or(l.err, err) }
