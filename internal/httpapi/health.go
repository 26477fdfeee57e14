package httpapi

import (
	"net/http"
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

func (s *Server) scrape(x *exchange, r *http.Request) error {
	s.prometheus.ServeHTTP(x, r)
	return nil
}
