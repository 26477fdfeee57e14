package background

import (
	"context"
	"io"
	"time"
)

// Watchdog cancels a context when a sender is silent: before it responds, during one
// read of its body, or after the end of the body until it has finished. It may send for
// long, and the reader may take any time between two reads.
type Watchdog struct {
	io.ReadCloser
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// NewWatchdog returns a context that is canceled with err after a silence of the given
// length. Stop it, or watch a body and close that.
func NewWatchdog(ctx context.Context, limit time.Duration, err error) (context.Context, *Watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &Watchdog{limit: limit, timer: time.AfterFunc(limit, func() { cancel(err) }), cancel: cancel}
}

// Stop cancels the context.
func (w *Watchdog) Stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// Watch returns a body whose reads are watched, and which stops the Watchdog when it is closed.
func (w *Watchdog) Watch(body io.ReadCloser) io.ReadCloser {
	w.timer.Stop()
	w.ReadCloser = body
	return w
}

func (w *Watchdog) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	n, err := w.ReadCloser.Read(p)
	if err == nil {
		w.timer.Stop()
	}
	return n, err
}

// Close implements io.Closer.
func (w *Watchdog) Close() error {
	defer w.Stop()
	return w.ReadCloser.Close()
}
