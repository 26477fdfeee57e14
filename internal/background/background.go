// Package background runs work that outlives the request that started it, waits between
// attempts, ends requests that stall, and buffers writes to a store that may be unavailable.
package background

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is returned instead of starting work in a closed Group.
var ErrClosed = errors.New("the server is shutting down")

// Group owns goroutines that outlive the call that started them.
type Group struct {
	ctx     context.Context // canceled by Close
	cancel  context.CancelFunc
	mu      sync.Mutex // so that Go starts nothing after Close has canceled ctx
	running sync.WaitGroup
}

// NewGroup returns an open group.
func NewGroup() *Group {
	ctx, cancel := context.WithCancel(context.Background())
	return &Group{ctx: ctx, cancel: cancel}
}

// Go starts run in a goroutine. Its context has the values of ctx and is
// canceled by Close. After Close, Go returns ErrClosed.
func (g *Group) Go(ctx context.Context, run func(context.Context)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return ErrClosed
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(g.ctx, cancel)
	g.running.Go(func() {
		defer cancel()
		defer stop()
		run(ctx)
	})
	return nil
}

// Close cancels all work and waits until it has ended.
func (g *Group) Close() {
	g.mu.Lock()
	g.cancel()
	g.mu.Unlock()
	g.running.Wait()
}
