package httpapi

import (
	"context"
	"sync"
	"time"
)

// work is the context of what is done for one answer, and bounds it. The timer
// starts with the first who waits for the end: most answers are there before
// anybody does, and a timer that is made and stopped for each costs more than
// finding their client's limits.
type work struct {
	context.Context // of the request
	deadline        time.Time

	mu    sync.Mutex
	timed context.Context // nil: nobody has waited yet
	stop  context.CancelFunc
}

func newWork(request context.Context) *work {
	return &work{Context: request, deadline: time.Now().Add(handlerTimeout)}
}

// Deadline implements context.Context.
func (w *work) Deadline() (time.Time, bool) { return w.deadline, true }

// Done implements context.Context.
func (w *work) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timed == nil {
		w.timed, w.stop = context.WithDeadline(w.Context, w.deadline)
	}
	return w.timed.Done()
}

// Err implements context.Context.
func (w *work) Err() error {
	if err := w.current().Err(); err != nil || time.Now().Before(w.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// Value implements context.Context. Contexts made from this one find the
// timer's behind it, and need no goroutine to end with it.
func (w *work) Value(key any) any { return w.current().Value(key) }

func (w *work) current() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timed != nil {
		return w.timed
	}
	return w.Context
}

func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
}
