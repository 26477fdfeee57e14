package background

import (
	"context"
	"io"
	"time"
)

// Watchdog cancels a context when a sender is silent for too long: before it responds, during one
// read of its body, or between the end of the body and Close. The whole body may take longer,
// and so may the reader between two reads.
type Watchdog struct {
	body   io.ReadCloser
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// NewWatchdog returns a context that is canceled with err after a silence of the given
// length. The caller calls Stop, or Watch and closes the body.
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
	w.body = body
	return w
}

// Read implements io.Reader.
func (w *Watchdog) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	n, err := w.body.Read(p)
	if err == nil {
		w.timer.Stop()
	}
	return n, err
}

// Close implements io.Closer.
func (w *Watchdog) Close() error {
	defer w.Stop()
	return w.body.Close()
}
