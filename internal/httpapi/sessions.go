package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"telapi/internal/session"
)

func (s *Server) issueToken(x *exchange, r *http.Request, body []byte) error {
	answer, err := s.deps.Sessions.Issue(r.Context(), x.principal, session.TokenRequest{
		Body: body, IdempotencyKeys: r.Header.Values("Idempotency-Key"), BaseURL: s.baseURL(r),
	})
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusCreated, answer)
}

func (s *Server) showSession(x *exchange, r *http.Request) error {
	view, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusOK, view)
}

func (s *Server) deleteSession(x *exchange, r *http.Request) error {
	if err := s.deps.Sessions.Delete(r.Context(), x.principal.TeamID, r.PathValue("id")); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}

// baseURL is where the client reaches the service: as configured, or else as
// this request came in. What a proxy says of that is believed as far as its
// word on the client's address is.
func (s *Server) baseURL(r *http.Request) string {
	if s.deps.PublicURL != "" {
		return s.deps.PublicURL
	}
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if peer, ok := parseAddr(r.RemoteAddr); ok && contains(s.deps.TrustedProxies, peer) {
		if proto := firstOf(r.Header.Get("X-Forwarded-Proto")); proto == "http" || proto == "https" {
			scheme = proto
		}
		if forwarded := firstOf(r.Header.Get("X-Forwarded-Host")); isHost(forwarded) {
			host = forwarded
		}
	}
	return scheme + "://" + host
}

// firstOf is what the proxy next to the client said, where several did.
func firstOf(header string) string {
	first, _, _ := strings.Cut(header, ",")
	return strings.ToLower(strings.TrimSpace(first))
}

// isHost keeps out what would be more than a host in a URL.
func isHost(s string) bool {
	u, err := url.Parse("http://" + s)
	return err == nil && u.Host == s && u.Hostname() != ""
}
