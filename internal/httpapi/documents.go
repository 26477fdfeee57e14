package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// document is a response body that rarely changes, with a strong ETag. Both are
// computed once.
type document struct {
	body []byte
	etag string
}

func newDocument(body []byte) document {
	sum := sha256.Sum256(body)
	return document{body, `"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`}
}

// serveDocument returns a handler that responds with a fixed body.
func serveDocument(contentType string, body []byte) handler {
	doc := newDocument(body)
	return func(x *exchange, r *http.Request) error {
		doc.write(x, r, contentType)
		return nil
	}
}

func (s *Server) runtimeEndpoint(x *exchange, r *http.Request) error {
	body, err := s.deps.Endpoints.Capabilities(r.Context(), x.principal.TeamID, r.PathValue("id"))
	if err != nil {
		return err
	}
	newDocument(body).write(x, r, "application/json")
	return nil
}

// write responds with the document, or with 304 if the client has it already.
func (d document) write(x *exchange, r *http.Request, contentType string) {
	x.Header().Set("ETag", d.etag)
	x.Header().Set("Cache-Control", "private, no-cache")
	if etagMatches(r.Header.Get("If-None-Match"), d.etag) {
		x.WriteHeader(http.StatusNotModified)
		return
	}
	x.WriteBytes(http.StatusOK, contentType, d.body)
}

// etagMatches uses the weak comparison of If-None-Match (RFC 9110, 13.1.2).
func etagMatches(header, etag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == etag || candidate == "*" {
			return true
		}
	}
	return false
}
