package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/ratelimit"
)

// Headers of requests and responses of consoles on other origins, besides those that
// browsers always allow. An API key does not belong in a page.
const (
	consoleRequestHeaders  = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, If-Range, Range, Traceparent, X-Request-Id"
	consoleResponseHeaders = "Content-Range, ETag, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
)

// allowConsole lets pages of CONSOLE_ORIGINS read the response to an API request, and
// reports whether it comes from one. Cookies are not used, so no credentials are
// allowed.
func (s *Server) allowConsole(x *exchange, r *http.Request) bool {
	if len(s.deps.ConsoleOrigins) == 0 || !strings.HasPrefix(r.URL.Path, "/api/v1/") || strings.HasPrefix(r.URL.Path, wire.WebhooksPath) {
		return false
	}
	h := x.Header()
	h.Add("Vary", "Origin") // for caches, also if this request has no Origin
	origins := r.Header["Origin"]
	if len(origins) != 1 || !slices.Contains(s.deps.ConsoleOrigins, origins[0]) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origins[0])
	h.Set("Access-Control-Expose-Headers", consoleResponseHeaders)
	return true
}

// preflight answers the CORS preflight request of a console. Like every request, it
// counts against the api tier.
func (s *Server) preflight(x *exchange, allow string) {
	ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
	defer cancel()
	err := x.applyLimit(s.deps.Limits.Allow(ctx, ratelimit.API, x.client))
	if err == nil {
		err = x.respondPreflight(allow, consoleRequestHeaders)
	}
	if err != nil {
		x.Fail(err)
	}
}

func (x *exchange) respondPreflight(methods, headers string) error {
	h := x.Header()
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", headers)
	h.Set("Access-Control-Max-Age", "600")
	return x.noContent(nil)
}
