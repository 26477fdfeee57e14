package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"telapi/internal/session"
)

func (s *Server) issueToken(x *exchange, r *http.Request, body []byte) error {
	response, err := s.deps.Sessions.Issue(r.Context(), x.principal.TeamID, session.TokenRequest{
		Body: body, IdempotencyKeys: r.Header.Values("Idempotency-Key"), BaseURL: s.baseURL(r),
	})
	if err != nil {
		return err
	}
	return x.WriteJSON(http.StatusCreated, response)
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

// baseURL returns the URL under which the client reaches the service: PUBLIC_URL,
// or else the scheme and host of this request. X-Forwarded-Proto and -Host count
// only if they come from a trusted proxy.
func (s *Server) baseURL(r *http.Request) string {
	if s.deps.PublicURL != "" {
		return s.deps.PublicURL
	}
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if peer, ok := parseAddr(r.RemoteAddr); ok && contains(s.deps.TrustedProxies, peer) {
		if proto := firstValue(r.Header.Get("X-Forwarded-Proto")); proto == "http" || proto == "https" {
			scheme = proto
		}
		if forwarded := firstValue(r.Header.Get("X-Forwarded-Host")); isHost(forwarded) {
			host = forwarded
		}
	}
	return scheme + "://" + host
}

// firstValue returns the value that the proxy next to the client has set, if there
// are several proxies.
func firstValue(header string) string {
	first, _, _ := strings.Cut(header, ",")
	return strings.ToLower(strings.TrimSpace(first))
}

// isHost reports whether s is a host that can be part of a URL.
func isHost(s string) bool {
	u, err := url.Parse("http://" + s)
	return err == nil && u.Host == s && u.Hostname() != ""
}
