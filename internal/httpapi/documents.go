package httpapi

import (
	"net/http"
	"strings"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
)

// serveYAML answers with a description of the interface.
func serveYAML(content []byte) handler {
	doc := endpoint.NewDocument(content)
	return func(w http.ResponseWriter, r *http.Request, _ auth.Principal) error {
		writeDocument(w, r, "application/yaml", doc)
		return nil
	}
}

func (s *Server) runtimeCapabilities(w http.ResponseWriter, r *http.Request, _ auth.Principal) error {
	writeDocument(w, r, "application/json", s.deps.Capabilities)
	return nil
}

func (s *Server) runtimeEndpoint(w http.ResponseWriter, r *http.Request, who auth.Principal) error {
	doc, err := s.deps.Endpoints.Capabilities(r.Context(), who.TeamID, r.PathValue("id"))
	if err != nil {
		return err
	}
	writeDocument(w, r, "application/json", doc)
	return nil
}

// writeDocument answers with something that rarely changes, or with 304 when
// the client has it already.
func writeDocument(w http.ResponseWriter, r *http.Request, contentType string, doc endpoint.Document) {
	w.Header().Set("ETag", doc.ETag)
	w.Header().Set("Cache-Control", "private, no-cache")
	if etagMatches(r.Header.Get("If-None-Match"), doc.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeBytes(w, http.StatusOK, contentType, doc.Body)
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
