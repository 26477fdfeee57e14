package httpapi

import (
	"net/http"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
)

const (
	// handlerTimeout bounds the work on one request, so that a store that hangs
	// causes 503 responses and not a growing number of waiting requests.
	handlerTimeout = 10 * time.Second
	// maxBody is the largest request body of all routes but the webhooks.
	maxBody = 64 << 10
)

// serve takes a request through its route: IP rate limit, credential, scope,
// team quota, handler. The first error ends it.
func (s *Server) serve(x *exchange, r *http.Request, rt *Route) {
	x.route = rt
	ctx := withTimeout(x.ctx)
	defer ctx.cancel()
	if err := s.admitAndHandle(x, r.WithContext(ctx), rt); err != nil {
		x.Fail(err)
	}
}

func (s *Server) admitAndHandle(x *exchange, r *http.Request, rt *Route) error {
	if err := s.limitAddress(x, r, rt.Tier); err != nil {
		return err
	}
	principal, err := s.authenticate(r, rt)
	if err != nil {
		return s.countAuthFailure(x, r, err)
	}
	if rt.Access == team {
		x.principal = principal
		if err := principal.Require(rt.Scope); err != nil {
			return err
		}
		if err := s.limitTeam(x, r); err != nil {
			return err
		}
	}
	// POST handlers read and limit the body themselves.
	if rt.Method != http.MethodPost && r.ContentLength > maxBody {
		return tooLarge(maxBody)
	}
	return rt.handle(x, r)
}

func (s *Server) authenticate(r *http.Request, rt *Route) (auth.Principal, error) {
	switch rt.Access {
	case public:
		return auth.Principal{}, nil
	case metricsOnly:
		return auth.Principal{}, s.checkMetricsToken(r)
	}
	// If both are sent, only the API key counts: two credentials that disagree
	// must not be tried one after the other.
	if key, sent := r.Header["X-Api-Key"]; sent {
		if len(key) != 1 {
			return auth.Principal{}, s.deps.Auth.Missing()
		}
		return s.deps.Auth.APIKey(r.Context(), key[0])
	}
	if header, sent := r.Header["Authorization"]; sent && len(header) == 1 {
		return s.deps.Auth.Bearer(header[0])
	}
	return auth.Principal{}, s.deps.Auth.Missing()
}

func (s *Server) checkMetricsToken(r *http.Request) error {
	if want := s.deps.MetricsToken; want != "" && !httpserve.HasBearer(r, want) {
		return fault.New(fault.Unauthorized, "Send METRICS_TOKEN as a bearer token.")
	}
	return nil
}

func (s *Server) limitAddress(x *exchange, r *http.Request, tier ratelimit.Tier) error {
	if tier == "" {
		return nil
	}
	return x.applyLimit(s.deps.Limits.Allow(r.Context(), tier, x.client))
}

func (s *Server) limitTeam(x *exchange, r *http.Request) error {
	quota, err := s.deps.Quotas.Of(r.Context(), x.principal.TeamID)
	if err != nil {
		return err
	}
	return x.applyLimit(s.deps.Limits.AllowTeam(r.Context(), x.principal.TeamID, quota))
}

// countAuthFailure counts a rejected credential against the auth tier of the
// client's address: guessing leads to 429, valid credentials are not affected.
func (s *Server) countAuthFailure(x *exchange, r *http.Request, failure error) error {
	if fault.From(failure).Code.Status() != http.StatusUnauthorized {
		return failure
	}
	d, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	if err == nil && d.Allowed {
		return failure
	}
	return x.applyLimit(d, err)
}

// applyLimit sets the rate limit headers and returns an error if the limit is
// exceeded.
func (x *exchange) applyLimit(d ratelimit.Decision, err error) error {
	if err != nil {
		return err
	}
	h := x.Header()
	h.Add("Ratelimit-Policy", d.PolicyHeader()) // canonical names are cheap to look up
	h.Add("Ratelimit", d.Header())
	if !d.Allowed {
		return d.Refusal()
	}
	return nil
}
