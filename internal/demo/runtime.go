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

const (
	group              = "demo" // offers that the demo declines stay available to other groups
	releaseTimeout     = 5 * time.Second
	maxRestoredEntries = 2000 // covers the committed entries that are kept
)

// RuntimeOptions configure a Runtime.
type RuntimeOptions struct {
	Name   string
	Store  rueidis.ClientOption
	Demo   Resources
	API    string // URL of the API server
	Bot    string // URL of the bot
	Client *http.Client
	Events *Hub // may be nil
	Log    *slog.Logger
}

// Runtime is a small call runtime that runs the demo team's sessions.
type Runtime struct {
	RuntimeOptions
	runtime *callruntime.Runtime
}

// NewRuntime connects to the key-value store.
func NewRuntime(o RuntimeOptions) (*Runtime, error) {
	r, err := callruntime.New(callruntime.Options{Store: o.Store, Name: o.Name, Group: group})
	if err != nil {
		return nil, fmt.Errorf("start demo runtime: %w", err)
	}
	return &Runtime{o, r}, nil
}

// Run accepts sessions until ctx ends, and then releases its calls to other runtimes.
func (r *Runtime) Run(ctx context.Context) {
	var calls sync.WaitGroup
	defer r.runtime.Close()
	defer calls.Wait()
	for ctx.Err() == nil {
		ch, err := r.runtime.Accept(ctx, func(o wire.Offer) bool { return o.TeamID == r.Demo.TeamID })
		if err != nil {
			if ctx.Err() == nil {
				r.Log.WarnContext(ctx, "demo runtime cannot accept sessions", "error", err)
				_ = sleep.For(ctx, time.Second)
			}
			continue
		}
		calls.Go(func() {
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
	e := &channelEffects{
		loopState: newLoopState(), ctx: ctx, ch: ch, hub: r.Events,
		client: client{r.Bot, r.API, r.Demo.Key.Reveal(), ch.EndpointID, r.Client},
	}
	defer func() {
		stop()
		e.background.Wait()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_ = ch.Close(closing) // if it fails, the claim expires
	}()
	c := newCall(ch.Mode, e, time.Now)
	if err := r.restore(ctx, c, ch); err != nil {
		return fmt.Errorf("read committed entries: %w", err)
	}
	e.publish("", EventSession, r.Name+" claimed the call", nil)
	return loop(ctx, ch, c, e.loopState)
}

// restore restores the state of a call from the committed entries.
func (r *Runtime) restore(ctx context.Context, c *call, ch *callruntime.Channel) error {
	if ch.Committed == "" {
		return nil
	}
	past, err := r.runtime.Entries(ctx, ch.ID, "", maxRestoredEntries)
	for _, d := range past {
		c.restore(d.Entry)
		if d.Position == ch.Committed {
			break
		}
	}
	return err
}
