package httpapi

import (
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"telapi/callruntime"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

// Playground is what the page to try the service with stands on.
type Playground struct {
	Files    fs.FS
	Docs     fs.FS // the reference, at /docs/
	Guide    func() Guide
	Onlooker func() (*callruntime.Runtime, error) // who looks at channels for the feed
	Feed     FeedSource
}

// Guide tells the page whom it can talk to and how. Without a key it asks for
// one.
type Guide struct {
	APIKey    string          `json:"apiKey,omitzero"`
	TeamID    string          `json:"teamId,omitzero"`
	Endpoints []GuideEndpoint `json:"endpoints"`
	Phrases   []Phrase        `json:"phrases"`
}

// GuideEndpoint is an endpoint to try.
type GuideEndpoint struct {
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Modes []endpoint.Mode `json:"modes"`
}

// Phrase is something to say, and what it does.
type Phrase struct {
	Say  string `json:"say"`
	Does string `json:"does"`
}

// policy lets a page load and reach nothing but this service.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"media-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageTypes are those of the files that are served; others are not.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".map":  "application/json",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".txt":  "text/plain; charset=utf-8",
}

type page struct {
	contentType string
	compressed  bool
	document    document
}

// readPages reads the files once. They are compiled in: what fails to be read is
// seen when the page is asked for. One that ends in .gz is served without that
// ending and as it is, for every browser can unpack it.
func readPages(files fs.FS) map[string]page {
	pages := map[string]page{}
	names, _ := fs.Glob(files, "*")
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		name, compressed := strings.CutSuffix(name, ".gz")
		if contentType := pageTypes[path.Ext(name)]; contentType != "" && err == nil {
			pages[name] = page{contentType, compressed, newDocument(content)}
		}
	}
	pages[""] = pages["index.html"]
	return pages
}

// leadTo sends a browser to a page: with the slash, beside which its files lie.
func leadTo(folder string) handler {
	return func(x *exchange, _ *http.Request) error {
		x.Header().Set("Location", folder)
		x.Header().Set("Cache-Control", "no-store")
		x.WriteHeader(http.StatusFound)
		return nil
	}
}

// fileOf answers with a file of a page.
func fileOf(pages map[string]page) handler {
	return func(x *exchange, r *http.Request) error {
		found, ok := pages[r.PathValue("file")]
		if !ok {
			return fault.New(fault.NotFound, "This page has no such file.")
		}
		h := x.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		if found.compressed {
			h.Set("Content-Encoding", "gzip")
		}
		found.document.write(x, r, found.contentType)
		return nil
	}
}

func (s *Server) playgroundConfig(x *exchange, r *http.Request) error {
	guide := s.deps.Playground.Guide()
	if !local(x.client, r.Host) || passedOn(r.Header) {
		guide.APIKey = ""
	}
	return x.WriteJSON(http.StatusOK, guide)
}

// local tells whether a page of this machine asks. The name counts as well: a
// foreign page can have its own name point to this machine, and read what the
// person at it may read.
func local(client netip.Addr, host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(host)
	return client.IsLoopback() && (host == "localhost" || err == nil && addr.IsLoopback())
}

// passedOn tells whether a proxy or a tunnel on this machine asks for somebody
// else: what it passes on comes from a local address, and often by a local name.
func passedOn(h http.Header) bool {
	return slices.ContainsFunc([]string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"},
		func(name string) bool { return h[name] != nil })
}

// dropSocket cuts a session's line, for people who want to see it come back.
func (s *Server) dropSocket(x *exchange, r *http.Request) error {
	id := r.PathValue("id")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	if !s.sockets.disconnect(id) {
		return fault.New(fault.NotFound, "This instance holds no socket of the session.")
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}
