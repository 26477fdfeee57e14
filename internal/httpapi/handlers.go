package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/speech"
)

// Health is the response of /health. Load balancers read the status code, people
// read the body.
type Health struct {
	Status        string            `json:"status"` // Healthy, or the reason why not
	Version       string            `json:"version"`
	UptimeSeconds int64             `json:"uptimeSeconds"`
	Checks        map[string]string `json:"checks"`
}

// Healthy is the status of an instance that can serve traffic.
const Healthy = "ok"

func (s *Server) health(x *exchange, _ *http.Request) error {
	h := s.deps.Health()
	status := http.StatusOK
	if h.Status != Healthy {
		status = http.StatusServiceUnavailable
		x.Header().Set("Retry-After", "2")
	}
	return x.WriteJSON(status, h)
}

// scrape serves /metrics. The budget bounds the responses that clients do not read, which
// need 130 KB each.
func (s *Server) scrape(x *exchange, r *http.Request) error {
	if token := s.deps.MetricsToken; token != "" && !httpserve.HasBearer(r, token) {
		return s.countAuthFailure(r.Context(), x, fault.New(fault.Unauthorized, "Send METRICS_TOKEN as a bearer token."))
	}
	client := ratelimit.Client(x.client).String()
	if err := s.scrapes.Take(client, 1); err != nil {
		return err
	}
	defer s.scrapes.Return(client, 1)
	s.prometheus.ServeHTTP(x, r)
	return nil
}

// respond sends a value as JSON, unless err is set.
func (x *exchange) respond(status int, v any, err error) error {
	if err != nil {
		return err
	}
	return x.WriteJSON(status, v)
}

func (s *Server) issueToken(x *exchange, r *http.Request, body []byte) error {
	response, err := s.deps.Sessions.Issue(r.Context(), x.principal.TeamID, session.TokenRequest{
		Body: body, IdempotencyKeys: r.Header.Values("Idempotency-Key"), BaseURL: s.baseURL(r),
	})
	return x.respond(http.StatusCreated, response, err)
}

// baseURL returns the URL under which the client reaches the service: PUBLIC_URL, or
// else the scheme and host of this request. X-Forwarded-Proto and -Host count only if
// they come from a trusted proxy. A list of hosts does not count, because a client can
// have sent the first.
func (s *Server) baseURL(r *http.Request) string {
	if s.deps.PublicURL != "" {
		return s.deps.PublicURL
	}
	scheme, host := "http", ownHost(r)
	if r.TLS != nil {
		scheme = "https"
	}
	if peer, ok := parseAddr(r.RemoteAddr); ok && contains(s.deps.TrustedProxies, peer) {
		first, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
		if proto := strings.ToLower(strings.TrimSpace(first)); proto == "http" || proto == "https" {
			scheme = proto
		}
		name := strings.ToLower(strings.Join(r.Header["X-Forwarded-Host"], ","))
		if httpserve.Hostname(name) != "" && !strings.Contains(name, ",") {
			host = name
		}
	}
	return scheme + "://" + host
}

// ownHost returns the Host of a request if it is a loopback name or the address of the
// connection, and otherwise the address of the connection. A client could have sent its own
// name as Host, so that the URLs in the response make others connect to it.
func ownHost(r *http.Request) string {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil || httpserve.IsLocalHost(r.Host) {
		return r.Host
	}
	named, err := netip.ParseAddr(httpserve.Hostname(r.Host))
	if own, ok := parseAddr(local.String()); ok && err == nil && named.Unmap() == own {
		return r.Host
	}
	return local.String()
}

func (s *Server) showSession(x *exchange, r *http.Request) error {
	view, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, r.PathValue("id"))
	return x.respond(http.StatusOK, view, err)
}

func (s *Server) deleteSession(x *exchange, r *http.Request) error {
	return x.noContent(s.deps.Sessions.Delete(r.Context(), x.principal.TeamID, r.PathValue("id")))
}

func (s *Server) listEndpoints(x *exchange, r *http.Request) error {
	return respondEndpoints(s, x, r, x.principal.TeamID, s.deps.Endpoints.Deployment.View)
}

func (s *Server) ttsUsage(x *exchange, r *http.Request) error {
	query, err := speech.ParseUsageQuery(x.principal.TeamID, x.params, s.deps.Now())
	if err != nil {
		return err
	}
	report, err := speech.SummarizeUsage(r.Context(), s.deps.Usage, query, s.deps.Now())
	return x.respond(http.StatusOK, report, err)
}

// query returns the query parameters that the route table lists for the route. Read
// them with fault.Issues.QueryValue.
func (x *exchange) query() (url.Values, error) {
	var issues fault.Issues
	params := issues.ParseQuery(x.Request.URL.RawQuery)
	maps.DeleteFunc(params, func(name string, _ []string) bool { return !slices.Contains(x.route.Params, name) })
	return params, issues.Err()
}

// document is a response body with a strong ETag.
type document struct {
	contentType string
	body        []byte
	etag        string
}

func newDocument(contentType string, body []byte) document {
	return document{contentType, body, strongETag(body)}
}

func strongETag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`
}

func (s *Server) runtimeEndpoint(x *exchange, r *http.Request) error {
	body, err := s.deps.Endpoints.Capabilities(r.Context(), x.principal.TeamID, r.PathValue("id"))
	if err != nil {
		return err
	}
	return newDocument("application/json", body).serve(x, r)
}

// serve responds with the document, or with 304 if the client has it already.
func (d document) serve(x *exchange, r *http.Request) error {
	h := x.Header()
	h.Set("ETag", d.etag)
	h.Set("Cache-Control", "private, no-cache")
	weak := strings.ReplaceAll(r.Header.Get("If-None-Match"), `W/"`, `"`) // compared weakly (RFC 9110, 13.1.2)
	if matchesETag(weak, d.etag) {
		x.WriteHeader(http.StatusNotModified)
	} else {
		x.WriteBytes(http.StatusOK, d.contentType, d.body)
	}
	return nil
}

// matchesETag reports whether a header lists an ETag, or is *.
func matchesETag(header, etag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		if candidate = strings.TrimSpace(candidate); candidate == etag || candidate == "*" {
			return true
		}
	}
	return false
}
