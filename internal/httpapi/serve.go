package httpapi

import (
	"net/http"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
)

const (
	// handlerTimeout bounds the work for one answer, so that a store which
	// hangs becomes a 503 and not a pile of waiting requests.
	handlerTimeout = 10 * time.Second
	// maxBody is the largest body of a request for which bodies are small.
	maxBody = 64 << 10
)

// serve takes a request through its route's row: tier, credential, scope,
// quota, handler. The first that refuses ends it.
func (s *Server) serve(x *exchange, r *http.Request, rt *Route) {
	x.route = rt
	bounded := newWork(x.whole)
	defer bounded.end()
	if err := s.admitAndHandle(x, r.WithContext(bounded), rt); err != nil {
		s.refuse(x, err)
	}
}

func (s *Server) admitAndHandle(x *exchange, r *http.Request, rt *Route) error {
	if err := s.limitAddress(x, r, rt.Tier); err != nil {
		return err
	}
	who, err := s.authenticate(r, rt)
	if err != nil {
		return s.countFailure(x, r, err)
	}
	if rt.Access == team {
		x.who = who
		if err := who.Require(rt.Scope); err != nil {
			return err
		}
		if err := s.limitTeam(x, r, who); err != nil {
			return err
		}
	}
	// A POST reads its body itself, to the limit in its row.
	if rt.Method != http.MethodPost && r.ContentLength > maxBody {
		return tooLarge(maxBody)
	}
	return rt.handle(x, r, who)
}

func (s *Server) authenticate(r *http.Request, rt *Route) (auth.Principal, error) {
	switch rt.Access {
	case public:
		return auth.Principal{}, nil
	case metricsOnly:
		return auth.Principal{}, s.checkMetricsToken(r)
	}
	// Where both are sent the key alone counts: two credentials that
	// disagree must not be tried one after the other.
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

func (s *Server) limitAddress(x *exchange, r *http.Request, tier ratelimit.Tier) error {
	if tier == "" {
		return nil
	}
	d, err := s.deps.Limits.Allow(r.Context(), tier, x.client)
	if err != nil {
		return err
	}
	return announceLimit(x, d)
}

func (s *Server) limitTeam(x *exchange, r *http.Request, who auth.Principal) error {
	quota, err := s.deps.Quotas.Of(r.Context(), who.TeamID)
	if err != nil {
		return err
	}
	d, err := s.deps.Limits.AllowTeam(r.Context(), who.TeamID, quota)
	if err != nil {
		return err
	}
	return announceLimit(x, d)
}

// announceLimit tells the client where it stands with one limit, and refuses
// when that is used up.
func announceLimit(w http.ResponseWriter, d ratelimit.Decision) error {
	h := w.Header()
	h.Add("Ratelimit-Policy", d.PolicyHeader()) // canonical names cost nothing to look up
	h.Add("Ratelimit", d.Header())
	if !d.Allowed {
		return d.Refusal()
	}
	return nil
}

// countFailure charges a bad credential to the auth tier of its address, so
// that guessing ends in 429 while good credentials go on.
func (s *Server) countFailure(x *exchange, r *http.Request, refusal error) error {
	if fault.From(refusal).Code.Status() != http.StatusUnauthorized {
		return refusal
	}
	d, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	if err != nil {
		return err
	}
	if d.Allowed {
		return refusal
	}
	return announceLimit(x, d)
}
