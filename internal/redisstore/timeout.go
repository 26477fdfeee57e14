package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// commandTimeout is the longest time that an operation takes.
	commandTimeout = 3 * time.Second
	// timerWindow is how far apart operations with a shared timer can start.
	timerWindow = commandTimeout / 16
)

// timeouts creates the contexts of operations. Operations that start within
// timerWindow share one, because a timer each would cost more than everything
// else an operation does in this process.
type timeouts struct{ newest atomic.Pointer[sharedTimeout] }

type sharedTimeout struct {
	context.Context
	start time.Time
}

// context returns a context that ends after commandTimeout, or at the caller's
// deadline if that is earlier. It is not cancelled together with the caller: the
// operation may be dialing a connection that other callers wait for.
func (t *timeouts) context(caller context.Context) (context.Context, context.CancelFunc) {
	shared := t.shared()
	if deadline, ok := caller.Deadline(); ok && time.Until(deadline) < commandTimeout-timerWindow {
		return context.WithDeadline(context.WithoutCancel(caller), deadline)
	}
	return shared, func() {}
}

func (t *timeouts) shared() context.Context {
	now := time.Now()
	if newest := t.newest.Load(); newest != nil && now.Sub(newest.start) < timerWindow {
		return newest
	}
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(commandTimeout))
	context.AfterFunc(ctx, cancel)
	next := &sharedTimeout{ctx, now}
	t.newest.Store(next)
	return next
}
