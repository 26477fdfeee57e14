package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

const (
	// handlerTimeout bounds the work on one request, so that a store that hangs
	// causes 503 responses and not a growing number of waiting requests.
	handlerTimeout = 10 * time.Second
	// maxBody is the largest request body, except of webhooks and of routes that
	// take a gateway profile.
	maxBody = 64 << 10
	// maxHops bounds how many X-Forwarded-For entries are read.
	maxHops = 32
)

// serve handles a request that matches a route. It sends the first error as the
// response.
func (s *Server) serve(x *exchange, r *http.Request, rt *Route) {
	x.route = rt
	ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	err := s.admit(x, r)
	if err == nil {
		err = rt.handle(x, r)
	}
	if err != nil {
		s.recordRejection(x, r, err)
		x.Fail(err)
	}
}

// admit checks IP rate limit, credential, scope, team quota, query string and body size.
func (s *Server) admit(x *exchange, r *http.Request) error {
	rt := x.route
	if rt.Tier != unlimited {
		if err := x.applyLimit(s.deps.Limits.Allow(r.Context(), rt.Tier, x.client)); err != nil {
			return err
		}
	}
	if rt.Scope != public {
		principal, caller, err := s.identify(r.Context(), r.Header)
		x.principal = principal
		if err != nil {
			return s.countAuthFailure(r.Context(), x, err)
		}
		x.holder = x.principal.TeamID
		if err := x.principal.Require(rt.Scope); err != nil {
			return err
		}
		if err := x.applyLimit(s.deps.Limits.AllowTeam(r.Context(), x.principal.TeamID, caller.Quota())); err != nil {
			return err
		}
		if x.params, err = x.query(); err != nil {
			return err
		}
	}
	handlerLimitsBody := slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, rt.Method)
	if !handlerLimitsBody && r.ContentLength > maxBody {
		return tooLarge(maxBody)
	}
	return nil
}

// identify authenticates the caller by the headers of its request, and returns its team.
// Credentials of a disabled or unknown team are rejected.
func (s *Server) identify(ctx context.Context, h http.Header) (p auth.Principal, caller team.Team, err error) {
	if p, err = s.authenticate(ctx, h); err != nil {
		return p, caller, err
	}
	if caller, err = s.deps.Teams.Team(ctx, p.TeamID); err == nil {
		err = s.deps.Auth.CheckTeam(p, caller.Exists(), caller.Disabled)
	}
	return p, caller, err
}

// authenticate verifies the API key or the console JWT. If both are sent, only
// the API key counts: two credentials that disagree must not be tried one after
// the other.
func (s *Server) authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	keys, authorization := h["X-Api-Key"], h["Authorization"]
	switch {
	case len(keys) == 1:
		return s.deps.Auth.APIKey(ctx, keys[0])
	case len(keys) == 0 && len(authorization) == 1:
		return s.deps.Auth.Bearer(authorization[0])
	}
	return auth.Principal{}, auth.ErrMissing()
}

// countAuthFailure counts a rejected credential against the auth tier of the
// client's address: guessing leads to 429, valid credentials are not affected.
func (s *Server) countAuthFailure(ctx context.Context, x *exchange, failure error) error {
	if fault.From(failure).Code.Status() != http.StatusUnauthorized {
		return failure
	}
	decision, err := s.deps.Limits.Allow(ctx, ratelimit.Auth, x.client)
	if err == nil && decision.Allowed {
		return failure
	}
	return x.applyLimit(decision, err)
}

// applyLimit sets the rate limit headers and returns an error if the limit is
// exceeded.
func (x *exchange) applyLimit(d ratelimit.Decision, err error) error {
	if err != nil {
		return err
	}
	h := x.Header()
	appendToList(h, "Ratelimit-Policy", d.PolicyHeader())
	appendToList(h, "Ratelimit", d.Header())
	if !d.Allowed {
		return d.Rejection()
	}
	return nil
}

// appendToList appends an item to a header that is a list, whose name is canonical. The
// list stays one line, because many clients read only the first of several.
func appendToList(h http.Header, name, item string) {
	if lines := h[name]; len(lines) > 0 {
		item = lines[0] + ", " + item
	}
	h[name] = []string{item}
}

// clientAddr returns the address of the client for rate limits. It reads
// X-Forwarded-For from the right and stops at the first address that is not a
// trusted proxy: a client can send any addresses further left.
func clientAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	client, ok := parseAddr(r.RemoteAddr)
	if !ok || !contains(trusted, client) {
		return client
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && len(hops)-i <= maxHops; i-- {
		hop, ok := parseAddr(strings.TrimSpace(hops[i]))
		if !ok {
			return client
		}
		client = hop
		if !contains(trusted, client) {
			return client
		}
	}
	return client
}

// parseAddr parses an address with or without a port.
func parseAddr(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
