package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/sleep"
)

// group is the demo's own: what it does not take, other groups are offered.
const group = "demo"

// RuntimeOptions say whose calls a runtime takes and by what it runs them.
type RuntimeOptions struct {
	Name   string
	Store  rueidis.ClientOption
	Demo   Resources
	API    string // the API server's address
	Bot    string // the bot's
	Client *http.Client
	Events *Hub // nil: nobody looks
	Log    *slog.Logger
}

// Runtime is a small call runtime as a good one is: it takes the demo team's
// sessions and runs them, through package callruntime alone.
type Runtime struct {
	RuntimeOptions
	runtime *callruntime.Runtime
}

// NewRuntime connects to the store.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	r, err := callruntime.New(callruntime.Options{Store: o.Store, Name: o.Name, Group: group})
	if err != nil {
		return nil, fmt.Errorf("start the demo runtime: %w", err)
	}
	return &Runtime{o, r}, nil
}

// Run takes sessions until ctx ends, and then leaves those it has to others.
func (r *Runtime) Run(ctx context.Context) {
	var calls sync.WaitGroup
	defer r.runtime.Close()
	defer calls.Wait()
	for ctx.Err() == nil {
		ch, err := r.runtime.Accept(ctx, func(o wire.Offer) bool { return o.TeamID == r.Demo.TeamID })
		if err != nil {
			if ctx.Err() == nil {
				r.Log.WarnContext(ctx, "the demo runtime cannot take sessions", "error", err)
				_ = sleep.For(ctx, time.Second)
			}
			continue
		}
		calls.Go(func() {
			err := r.serve(ctx, ch)
			if err != nil && ctx.Err() == nil && !errors.Is(err, callruntime.ErrClaimLost) {
				r.Log.WarnContext(ctx, "the demo runtime gave a call up", "session_id", ch.ID, "error", err)
			}
		})
	}
}

// serve runs one call from where it was committed to its end.
func (r *Runtime) serve(ctx context.Context, ch *callruntime.Channel) error {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = ch.Close(closing) // the claim runs out by itself otherwise
	}()
	l := &line{
		ledger: newLedger(), ctx: ctx, ch: ch, hub: r.Events,
		outside: outside{r.Bot, r.API, r.Demo.Key.Reveal(), ch.EndpointID, r.Client},
	}
	c := newCall(ch.Mode, l, time.Now)
	if err := r.recall(ctx, c, ch); err != nil {
		return fmt.Errorf("read what happened before: %w", err)
	}
	l.note("", EventSession, r.Name+" has the call", nil)
	return loop(ctx, ch, c, l.ledger)
}

// rememberedEntries covers what is kept of a stream behind the committed position.
const rememberedEntries = 2000

// recall has the call remember what was dealt with before.
func (r *Runtime) recall(ctx context.Context, c *call, ch *callruntime.Channel) error {
	if ch.Committed == "" {
		return nil
	}
	past, err := r.runtime.Entries(ctx, ch.ID, "", rememberedEntries)
	for _, d := range past {
		c.remember(d.Entry)
		if d.Position == ch.Committed {
			break
		}
	}
	return err
}
