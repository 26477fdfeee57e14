package httpapi

import (
	"context"
	"sync"
	"time"
)

// timeoutContext bounds the work on one request, like a context of
// context.WithTimeout. It starts a timer only when Done is first called. Most
// requests finish without a call of Done, and a timer costs more than the lookup of
// a rate limit.
type timeoutContext struct {
	context.Context // the parent
	deadline        time.Time

	mu    sync.Mutex
	timed context.Context // with a timer; nil until Done is called
	stop  context.CancelFunc
}

func withTimeout(parent context.Context) *timeoutContext {
	return &timeoutContext{Context: parent, deadline: time.Now().Add(handlerTimeout)}
}

func (c *timeoutContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *timeoutContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.stop = context.WithDeadline(c.Context, c.deadline)
	}
	return c.timed.Done()
}

func (c *timeoutContext) Err() error {
	if err := c.current().Err(); err != nil || time.Now().Before(c.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// Value implements context.Context. Children find the timed context through it,
// and so need no goroutine to end with it.
func (c *timeoutContext) Value(key any) any { return c.current().Value(key) }

func (c *timeoutContext) current() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed != nil {
		return c.timed
	}
	return c.Context
}

func (c *timeoutContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
}
