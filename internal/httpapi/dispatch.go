package httpapi

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"telapi/internal/fault"
)

// register builds the mux. Methods are told apart here rather than by the mux,
// so that a wrong one is answered with the envelope like every other refusal.
func (s *Server) register(routes []Route) *http.ServeMux {
	mux := http.NewServeMux()
	byPath := map[string]map[string]*Route{}
	for i, rt := range routes {
		if byPath[rt.Path] == nil {
			byPath[rt.Path] = map[string]*Route{}
		}
		byPath[rt.Path][rt.Method] = &routes[i]
	}
	for pattern, methods := range byPath {
		mux.Handle(pattern, s.methods(methods))
	}
	mux.HandleFunc("/", s.notFound)
	return mux
}

func (s *Server) methods(routes map[string]*Route) http.HandlerFunc {
	var allowed []string
	for m := range routes {
		allowed = append(allowed, m)
		if m == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	slices.Sort(allowed)
	allow := strings.Join(allowed, ", ")

	return func(w http.ResponseWriter, r *http.Request) {
		x := w.(*exchange) // ServeHTTP sends nothing else into the mux
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		rt, ok := routes[method]
		if !ok {
			x.Header().Set("Allow", allow)
			s.refuse(x, fault.New(fault.MethodNotAllowed, "This path takes %s.", allow))
			return
		}
		s.serve(x, r, rt)
	}
}

func (s *Server) notFound(w http.ResponseWriter, _ *http.Request) {
	hint := "GET /openapi.yaml tells what there is"
	if !s.deps.APIAccess {
		hint = "this deployment takes callbacks under " + webhooks + " alone"
	}
	s.refuse(w.(*exchange), fault.New(fault.NotFound, "There is nothing at this path; %s.", hint))
}

// route sends a request into the mux, except those that the mux would answer
// itself with a redirect or plain text.
func (s *Server) route(x *exchange, r *http.Request) {
	if p := r.URL.Path; !strings.HasPrefix(p, "/") || (p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/")) {
		s.notFound(x, r)
		return
	}
	s.mux.ServeHTTP(x, r)
}
