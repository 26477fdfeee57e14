package httpapi

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

// muxHandler is a handler in the mux. The mux only ever gets an exchange from
// Server.dispatch.
type muxHandler func(x *exchange, r *http.Request)

func (h muxHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h(w.(*exchange), r) }

// newMux builds the mux. Methods are matched here rather than by the mux, so
// that an unsupported method is answered with the error envelope.
func (s *Server) newMux(routes []Route) *http.ServeMux {
	mux := http.NewServeMux()
	byPath := map[string]map[string]*Route{}
	for i, rt := range routes {
		if byPath[rt.Path] == nil {
			byPath[rt.Path] = map[string]*Route{}
		}
		byPath[rt.Path][rt.Method] = &routes[i]
	}
	for pattern, methods := range byPath {
		mux.Handle(pattern, s.byMethod(methods))
	}
	mux.Handle("/", muxHandler(s.notFound))
	return mux
}

func (s *Server) byMethod(routes map[string]*Route) muxHandler {
	if get := routes[http.MethodGet]; get != nil {
		routes[http.MethodHead] = get
	}
	allow := strings.Join(slices.Sorted(maps.Keys(routes)), ", ")
	return func(x *exchange, r *http.Request) {
		if rt := routes[r.Method]; rt != nil {
			s.serve(x, r, rt)
		} else {
			x.Fail(httpserve.MethodNotAllowed(x, allow))
		}
	}
}

func (s *Server) notFound(x *exchange, _ *http.Request) {
	hint := "See GET /openapi.yaml for the available paths."
	if !s.deps.APIAccess {
		hint = "This deployment only accepts callbacks under " + wire.WebhooksPath + "."
	}
	x.Fail(fault.New(fault.NotFound, "Path not found. %s", hint))
}

// dispatch sends a request into the mux, except for paths that the mux would
// answer itself with a redirect or plain text.
func (s *Server) dispatch(x *exchange, r *http.Request) {
	if p := r.URL.Path; !strings.HasPrefix(p, "/") || (p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/")) {
		s.notFound(x, r)
		return
	}
	s.mux.ServeHTTP(x, r)
}
