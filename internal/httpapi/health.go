package httpapi

import (
	"crypto/subtle"
	"net/http"
	"strings"

	"telapi/internal/auth"
	"telapi/internal/fault"
)

// Health is the answer of /health. The load balancer reads the status code,
// people read the body.
type Health struct {
	Status        string            `json:"status"` // ok, or why it is not
	Version       string            `json:"version"`
	UptimeSeconds int64             `json:"uptimeSeconds"`
	Checks        map[string]string `json:"checks"`
}

// Healthy is the status of an instance that may be sent traffic.
const Healthy = "ok"

func (s *Server) health(w http.ResponseWriter, _ *http.Request, _ auth.Principal) error {
	h := s.deps.Health()
	status := http.StatusOK
	if h.Status != Healthy {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "2")
	}
	return writeJSON(w, status, h)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, _ auth.Principal) error {
	s.scrape.ServeHTTP(w, r)
	return nil
}

func (s *Server) checkMetricsToken(r *http.Request) error {
	want := s.deps.MetricsToken.Reveal()
	if want == "" {
		return nil
	}
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return fault.New(fault.Unauthorized, "Send METRICS_TOKEN as a bearer token.")
	}
	return nil
}
