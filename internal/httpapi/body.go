package httpapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"telapi/internal/fault"
)

// withBody reads a JSON body of at most maxBody bytes for a handler.
func withBody(handle func(x *exchange, r *http.Request, body []byte) error) handler {
	return func(x *exchange, r *http.Request) error {
		body, err := readBody(x, r, maxBody)
		if err != nil {
			return err
		}
		r, cancel := restartTimeout(x, r)
		defer cancel()
		return handle(x, r, body)
	}
}

// restartTimeout gives the work on a body the full handler timeout, no matter how
// long the client took to send the body.
func restartTimeout(x *exchange, r *http.Request) (restarted *http.Request, cancel func()) {
	ctx := withTimeout(x.ctx)
	return r.WithContext(ctx), ctx.cancel
}

// maxPreallocated is the longest Content-Length for which memory is allocated at
// once: a client must not allocate more by just declaring a long body.
const maxPreallocated = 16 << 10

// readBody reads a JSON body. It rejects other content types and a Content-Length
// over the limit before it reads anything.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if !declaresJSON(r.Header) {
		return nil, fault.New(fault.UnsupportedMedia, "Send the body as Content-Type: application/json, in UTF-8 and without Content-Encoding.")
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	var body []byte
	var err error
	if n := r.ContentLength; n >= 0 && n <= maxPreallocated { // net/http does not deliver more
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	if err == nil {
		return body, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(limit)
	}
	if ctxErr := r.Context().Err(); errors.Is(ctxErr, context.Canceled) {
		return nil, ctxErr
	}
	return nil, fault.New(fault.MalformedJSON, "The body is incomplete.").WithCause(err)
}

func tooLarge(limit int64) error {
	return fault.New(fault.PayloadTooLarge, "The body is too large: the limit is %d bytes.", limit)
}

func declaresJSON(h http.Header) bool {
	if encoding := h.Values("Content-Encoding"); len(encoding) > 1 || len(encoding) == 1 && !strings.EqualFold(encoding[0], "identity") {
		return false
	}
	contentTypes := h.Values("Content-Type")
	if len(contentTypes) != 1 {
		return false
	}
	if contentTypes[0] == "application/json" { // the usual value needs no parsing
		return true
	}
	mediaType, params, err := mime.ParseMediaType(contentTypes[0])
	charset, given := params["charset"]
	return err == nil && mediaType == "application/json" && (!given || strings.EqualFold(charset, "utf-8"))
}

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
