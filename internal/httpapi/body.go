package httpapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"telapi/internal/auth"
	"telapi/internal/fault"
)

// bodyHandler is a handler of a route that takes a JSON body.
type bodyHandler func(w http.ResponseWriter, r *http.Request, who auth.Principal, body []byte) error

// withBody reads a JSON body for a handler, a small one.
func withBody(handle bodyHandler) handler {
	return func(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
		body, err := readBody(w, r, maxBody)
		if err != nil {
			return err
		}
		r, end := begin(w, r)
		defer end()
		return handle(w, r, who, body)
	}
}

// begin gives the work on a body its whole time: what the client took to send it
// was none of ours.
func begin(w http.ResponseWriter, r *http.Request) (begun *http.Request, end func()) {
	bounded := newWork(w.(*exchange).whole)
	return r.WithContext(bounded), bounded.end
}

// foreseen is the longest declared length that is made room for at once: who
// only declares a long body shall not have it.
const foreseen = 16 << 10

// readBody refuses what is not declared as JSON before it reads a byte, and
// what is declared too large before it reads all of it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if !declaresJSON(r.Header) {
		return nil, fault.New(fault.UnsupportedMedia, "Send the body as Content-Type: application/json, in UTF-8 and without Content-Encoding.")
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body, err := readAll(w, r, limit)
	var over *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case errors.Is(r.Context().Err(), context.Canceled):
		return nil, r.Context().Err()
	default:
		return nil, fault.New(fault.MalformedJSON, "The body broke off before its end.").WithCause(err)
	}
}

func readAll(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if n := r.ContentLength; n >= 0 && n <= foreseen { // no more than that can come
		body := make([]byte, n)
		_, err := io.ReadFull(r.Body, body)
		return body, err
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
}

func tooLarge(limit int64) error {
	return fault.New(fault.PayloadTooLarge, "This route takes a body of %d bytes at the most.", limit)
}

func declaresJSON(h http.Header) bool {
	if encoding := h.Values("Content-Encoding"); len(encoding) > 1 || len(encoding) == 1 && !strings.EqualFold(encoding[0], "identity") {
		return false
	}
	declared := h.Values("Content-Type")
	if len(declared) != 1 {
		return false
	}
	if declared[0] == "application/json" {
		return true
	}
	mediaType, params, err := mime.ParseMediaType(declared[0])
	charset, given := params["charset"]
	return err == nil && mediaType == "application/json" && (!given || strings.EqualFold(charset, "utf-8"))
}
