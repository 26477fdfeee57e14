package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

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

// ownHost returns the Host of a request if it is a loopback name or the address that
// the client has connected to. A client can send any other Host, even one that makes
// others connect to it: ownHost then returns the address of the connection.
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

// MediaReader reads blobs of the media service. The response is streamed, with
// status 200, 206, 304, 412 or 416; the caller closes its body.
type MediaReader interface {
	Fetch(ctx context.Context, method, path string, header http.Header) (*http.Response, error)
}

func (s *Server) listSpeechProviders(x *exchange, _ *http.Request) error {
	return x.WriteJSON(http.StatusOK, map[string][]speech.ProviderInfo{"providers": s.deps.Speech.ListProviders()})
}

// synthesize uses the context without the handler timeout, which is too short for
// speech providers.
func (s *Server) synthesize(x *exchange, _ *http.Request, body []byte) error {
	response, err := s.deps.Speech.Synthesize(x.ctx, x.principal.TeamID, body)
	if err == nil && len(response.Audio) > 0 {
		return x.respondWithAudio(s.audio, len(response.Audio), response)
	}
	return x.respond(http.StatusOK, response, err)
}

// Header fields that playSpeech forwards to the media service and back.
var (
	audioRequestHeaders  = []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}
	audioResponseHeaders = []string{"Content-Length", "Content-Range", "Content-Type", "ETag", "Last-Modified", "Accept-Ranges", "Cache-Control"}
)

func (s *Server) playSpeech(x *exchange, r *http.Request) error {
	if err := s.speechStreams.Take(x.holder, 1); err != nil {
		return err
	}
	defer s.speechStreams.Return(x.holder, 1)
	audio, err := s.deps.Speech.Open(x.ctx, x.principal.TeamID, r.PathValue("name"))
	if err != nil {
		return err
	}
	header := http.Header{}
	copyHeader(header, r.Header, audioRequestHeaders)
	resp, err := s.deps.Media.Fetch(x.ctx, r.Method, audio.Path, header)
	if err != nil {
		return audio.Failed(x.ctx, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusPreconditionFailed:
		return fault.New(fault.PreconditionFailed, "The audio does not match If-Match or If-Unmodified-Since.")
	case http.StatusRequestedRangeNotSatisfiable:
		copyHeader(x.Header(), resp.Header, []string{"Content-Range"})
		return fault.New(fault.RangeUnsatisfiable, "The requested range is outside the audio. See Content-Range for its length.")
	}
	copyHeader(x.Header(), resp.Header, audioResponseHeaders)
	if !audio.ExpiresAt.IsZero() { // the media service does not know the expiry
		x.Header().Set("Cache-Control", cacheUntil(audio.ExpiresAt, s.deps.Now()))
	}
	x.WriteHeader(resp.StatusCode)
	var body io.Reader = resp.Body
	if resp.StatusCode == http.StatusOK && r.Method != http.MethodHead {
		body = audio.Verify(x.ctx, body, resp.Header.Get("ETag"))
	}
	if _, err := io.Copy(deadlineWriter{x}, body); err != nil {
		panic(http.ErrAbortHandler) // aborts the connection, so that the client notices the truncation
	}
	return nil
}

func copyHeader(to, from http.Header, names []string) {
	for _, name := range names {
		if value := from.Get(name); value != "" {
			to.Set(name, value)
		}
	}
}

func cacheUntil(expires, now time.Time) string {
	return fmt.Sprintf("private, max-age=%d", max(0, int64(expires.Sub(now).Seconds())))
}

// deadlineWriter applies streamWriteTimeout to each write, not to the whole response.
type deadlineWriter struct{ http.ResponseWriter }

func (w deadlineWriter) Write(b []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	return w.ResponseWriter.Write(b)
}
