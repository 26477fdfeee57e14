package httpapi

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"telapi/internal/callback"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/strictjson"
)

const (
	// firstRead is the memory that a body of unknown or greater length gets before
	// any of it has arrived.
	firstRead = 4 << 10
	smallBody = callback.MaxUncheckedBody
	// smallRead has one byte more, which shows that a body of unknown length is not small.
	smallRead = smallBody + 1

	// The memory for the bodies of all requests in progress. Small bodies have their
	// own, so that they are served even if clients with valid credentials send many
	// large ones. So have small callbacks, because anyone can send a made-up token.
	smallBodyBudget    = 8 << 20
	callbackBodyBudget = 8 << 20
	callbackBodyShare  = 25 // percent, of an address
	largeBodyBudget    = 24 << 20

	// A body must arrive within bodyGrace plus the time that it needs at minBodyRate,
	// and within readTimeout. A client that stops sending is disconnected soon.
	bodyGrace   = 5 * time.Second
	minBodyRate = 4 << 10 // bytes per second
	readTimeout = 30 * time.Second
)

// withBody reads a JSON body of at most maxBody bytes for a handler.
func (s *Server) withBody(handle func(x *exchange, r *http.Request, body []byte) error) handler {
	return s.withBodyOf(maxBody, handle)
}

// withBodyOf reads a JSON body of at most limit bytes for a handler.
func (s *Server) withBodyOf(limit int64, handle func(x *exchange, r *http.Request, body []byte) error) handler {
	return func(x *exchange, r *http.Request) error {
		if err := checkBodyHeader(r, limit, "application/json"); err != nil {
			return err
		}
		body, err := s.readBody(x, r, limit, nil)
		if err != nil {
			return err
		}
		r, cancel := restartTimeout(x.ctx, r)
		defer cancel()
		return handle(x, r, strictjson.TrimBOM(body))
	}
}

// restartTimeout gives the work on a body the full handler timeout, no matter how
// long the client took to send the body.
func restartTimeout(parent context.Context, r *http.Request) (restarted *http.Request, cancel func()) {
	ctx, cancel := context.WithTimeout(parent, handlerTimeout)
	return r.WithContext(ctx), cancel
}

// checkBodyHeader rejects a body by its header: other content types than JSON, and
// a Content-Length over the limit. accepted names the content types of the route.
func checkBodyHeader(r *http.Request, limit int64, accepted string) error {
	if !declaresJSON(r.Header) {
		return fault.New(fault.UnsupportedMedia, "Send the body as Content-Type: %s, in UTF-8 and without Content-Encoding.", accepted)
	}
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	return nil
}

// readBody reads a body of at most limit bytes, whose Content-Length the caller has
// checked. Its memory grows with the bytes that have arrived and comes from the budgets
// of all requests; it is returned when the request ends. If beforeLarge is not nil, it is
// called before more than smallBody bytes are read, and its error ends the read. It can
// change x.holder, whose share the memory is.
func (s *Server) readBody(x *exchange, r *http.Request, limit int64, beforeLarge func() error) ([]byte, error) {
	isLengthKnown, length := r.ContentLength >= 0, r.ContentLength
	if !isLengthKnown {
		length = limit + 1 // one byte more shows that the body is too large
	}
	pace := pacer{http.NewResponseController(x), time.Now()}
	defer pace.stop()
	var body []byte
	for isComplete := false; !isComplete && int64(len(body)) < length; {
		n := int64(len(body))
		if beforeLarge != nil && max(n, r.ContentLength) > smallBody {
			if err := beforeLarge(); err != nil {
				return nil, err
			}
			beforeLarge = nil
		}
		if len(body) == cap(body) {
			size := min(max(firstRead, 2*n), length)
			if !isLengthKnown && n <= smallBody {
				size = min(size, smallRead)
			}
			if err := s.reserve(x, size); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		pace.expect(n)
		read, err := r.Body.Read(body[n:cap(body)])
		body = body[:n+int64(read)]
		isComplete = err == io.EOF && !isLengthKnown
		if err != nil && !isComplete && int64(len(body)) < length {
			x.isTruncated = true
			x.Header().Set("Connection", "close")
			return nil, fault.New(fault.MalformedJSON, "The body is incomplete.").WithCause(err)
		}
	}
	if int64(len(body)) > limit {
		return nil, tooLarge(limit)
	}
	return body, nil
}

// reservation is the part of a budget that a request has taken.
type reservation struct {
	budget *ratelimit.Budget
	holder string
	size   int64
}

func (r reservation) release() {
	if r.budget != nil {
		r.budget.Return(r.holder, r.size)
	}
}

// reserve raises the memory of a request's body to size.
func (s *Server) reserve(x *exchange, size int64) error {
	x.body.release()
	x.body = reservation{s.smallBodies, x.holder, size}
	switch {
	case size > smallRead:
		x.body.budget = s.largeBodies
	case x.isCallback:
		x.body.budget = s.callbackBodies
	}
	err := x.body.budget.Take(x.holder, size)
	if err != nil {
		x.body = reservation{}
	}
	return err
}

// pacer disconnects clients that send a body too slowly.
type pacer struct {
	conn  *http.ResponseController
	start time.Time
}

// expect sets the deadline of the next read, after received bytes.
func (p pacer) expect(received int64) {
	allowed := bodyGrace + time.Duration(received)*time.Second/minBodyRate
	_ = p.conn.SetReadDeadline(p.start.Add(min(allowed, readTimeout))) // not supported by tests
}

// stop removes the deadline. net/http reads from the connection while the handler
// runs, and cancels the request when a deadline passes.
func (p pacer) stop() { _ = p.conn.SetReadDeadline(time.Time{}) }

// Fail sends an error. net/http reads up to 256 KiB of the rest of a body before or
// after it sends the response; Fail limits how long that may take.
func (x *exchange) Fail(err error) {
	if x.Request.ContentLength != 0 && x.Status == 0 {
		deadline := time.Now()
		if !x.isTruncated {
			deadline = deadline.Add(bodyGrace)
		}
		_ = http.NewResponseController(x).SetReadDeadline(deadline)
	}
	x.Response.Fail(err)
}

func tooLarge(limit int64) error {
	return fault.New(fault.PayloadTooLarge, "The body is too large: the limit is %d bytes.", limit)
}

// isUnencoded reports whether a body has no Content-Encoding.
func isUnencoded(h http.Header) bool {
	encoding := h.Values("Content-Encoding")
	return len(encoding) == 0 || len(encoding) == 1 && strings.EqualFold(encoding[0], "identity")
}

func declaresJSON(h http.Header) bool {
	if !isUnencoded(h) {
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
	return err == nil && mediaType == "application/json" && (!given || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8"))
}
