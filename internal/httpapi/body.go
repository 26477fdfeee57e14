package httpapi

import (
	"context"
	"io"
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
	// smallBody is the size up to which a callback is read before its credential is checked.
	smallBody = callback.MaxUncheckedBody
	// smallRead has one byte more, which shows that a body of unknown length is not small.
	smallRead = smallBody + 1

	// The memory for the bodies of all requests in progress. It is divided, so that many
	// large bodies of clients with valid credentials do not displace small ones, nor do
	// small callbacks, which anyone can send with a made-up token.
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
		ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout) // no matter how long the client took to send the body
		defer cancel()
		return handle(x, r.WithContext(ctx), strictjson.TrimBOM(body))
	}
}

// checkBodyHeader rejects a body by its header: other content types than JSON, and
// a Content-Length over the limit. accepted names the content types of the route.
func checkBodyHeader(r *http.Request, limit int64, accepted string) error {
	if mediaType(r.Header) != "application/json" {
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
// set another x.holder, whose share then has the memory.
func (s *Server) readBody(x *exchange, r *http.Request, limit int64, beforeLarge func() error) ([]byte, error) {
	length, isLengthKnown := r.ContentLength, r.ContentLength >= 0
	if !isLengthKnown {
		length = limit + 1 // read at most this much: one byte more shows that the body is too large
	}
	conn, start := http.NewResponseController(x), time.Now()
	// net/http reads from the connection while the handler runs. If the deadline passed then, it
	// would cancel the request.
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	var body []byte
	for int64(len(body)) < length {
		received := int64(len(body))
		if beforeLarge != nil && max(received, r.ContentLength) > smallBody {
			if err := beforeLarge(); err != nil {
				return nil, err
			}
			beforeLarge = nil
		}
		if len(body) == cap(body) {
			size := min(max(firstRead, 2*received), length)
			if !isLengthKnown && received <= smallBody {
				size = min(size, smallRead)
			}
			if err := x.reserve(s.bodyBudget(x, size), size); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, size), body...)
		}
		allowed := bodyGrace + time.Duration(received)*time.Second/minBodyRate
		_ = conn.SetReadDeadline(start.Add(min(allowed, readTimeout))) // not supported by tests
		n, err := r.Body.Read(body[received:cap(body)])
		body = body[:received+int64(n)]
		if err == io.EOF && !isLengthKnown {
			break
		}
		if err != nil && int64(len(body)) < length {
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

// bodyBudget returns the budget for a body of which size bytes are read.
func (s *Server) bodyBudget(x *exchange, size int64) *ratelimit.Budget {
	switch {
	case size > smallRead:
		return s.largeBodies
	case x.isCallback:
		return s.callbackBodies
	}
	return s.smallBodies
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
func (x *exchange) reserve(budget *ratelimit.Budget, size int64) error {
	x.body.release()
	x.body = reservation{}
	err := budget.Take(x.holder, size)
	if err == nil {
		x.body = reservation{budget, x.holder, size}
	}
	return err
}

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

// mediaType returns the media type of a body in UTF-8 and without Content-Encoding, or "".
func mediaType(h http.Header) string {
	encodings, types := h.Values("Content-Encoding"), h.Values("Content-Type")
	if len(types) != 1 || len(encodings) > 1 || len(encodings) == 1 && !strings.EqualFold(encodings[0], "identity") {
		return ""
	}
	return callback.MediaType(types[0])
}
