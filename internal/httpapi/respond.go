package httpapi

import (
	"math"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
)

// refuse answers with the envelope. What caused the error goes to the log only.
func (s *Server) refuse(x *exchange, err error) {
	e := fault.From(err)
	x.refusal = e
	h := x.Header()
	switch e.Code {
	case fault.Unauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="telapi"`)
	case fault.PayloadTooLarge:
		h.Set("Connection", "close") // the rest of the body is not worth reading
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
	}
	body := e.Envelope(x.id)
	if err := writeJSON(x, e.Code.Status(), body); err != nil {
		s.deps.Log.ErrorContext(x.whole, "an error could not be encoded", "error", err)
		http.Error(x, `{"error":{"code":"INTERNAL_ERROR","message":"The error could not be encoded."}}`, http.StatusInternalServerError)
	}
}

// writeJSON answers with a value. Nothing is written when it cannot be encoded.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	writeBytes(w, status, "application/json", body)
	return nil
}

func writeBytes(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is no error of ours
}
