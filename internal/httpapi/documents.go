package httpapi

import (
	"net/http"
	"strings"

	"telapi/internal/endpoint"
)

// serveYAML answers with a description of the interface.
func serveYAML(content []byte) handler {
	doc := endpoint.NewDocument(content)
	return func(x *exchange, r *http.Request) error {
		writeDocument(x, r, "application/yaml", doc)
		return nil
	}
}

func (s *Server) runtimeCapabilities(x *exchange, r *http.Request) error {
	writeDocument(x, r, "application/json", s.deps.Capabilities)
	return nil
}

func (s *Server) runtimeEndpoint(x *exchange, r *http.Request) error {
	doc, err := s.deps.Endpoints.Capabilities(r.Context(), x.principal.TeamID, r.PathValue("id"))
	if err != nil {
		return err
	}
	writeDocument(x, r, "application/json", doc)
	return nil
}

// writeDocument answers with something that rarely changes, or with 304 when
// the client has it already.
func writeDocument(x *exchange, r *http.Request, contentType string, doc endpoint.Document) {
	x.Header().Set("ETag", doc.ETag)
	x.Header().Set("Cache-Control", "private, no-cache")
	if etagMatches(r.Header.Get("If-None-Match"), doc.ETag) {
		x.WriteHeader(http.StatusNotModified)
		return
	}
	x.WriteBytes(http.StatusOK, contentType, doc.Body)
}

// etagMatches compares weakly, as If-None-Match asks.
func etagMatches(header, etag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == etag || candidate == "*" {
			return true
		}
	}
	return false
}
