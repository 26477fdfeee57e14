package operations

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// Without the database, callbacks still reach an instance. Requests that need the
// database are rejected.
func TestCallbacksAreAcceptedWithoutDatabase(t *testing.T) {
	for balancer, unavailable := range map[harness.Balancer]int{harness.HAProxy: http.StatusBadGateway, harness.Nginx: http.StatusServiceUnavailable} {
		t.Run(string(balancer), func(t *testing.T) {
			t.Parallel()
			database := testkit.StartPostgres(t, testkit.PostgresOptions{})
			s := install(t, balancer, database.URL())
			database.Stop()
			testkit.Until(t, "the balancer detects the outage", func() bool {
				return s.post(t, "/api/v1/sessions/token", "{}") == unavailable
			})
			for range 30 {
				// Only an instance rejects an unknown token with 401.
				if status := s.post(t, "/api/v1/webhooks/bot/unknown", "{}"); status != http.StatusUnauthorized {
					t.Fatalf("callback: status %d, want 401", status)
				}
				if status := s.post(t, "/api/v1/sessions/token", "{}"); status != unavailable {
					t.Fatalf("token request: status %d, want %d", status, unavailable)
				}
			}
		})
	}
}

// post sends a request to the balancer and returns the status.
func (s *installation) post(t *testing.T, path, body string) int {
	t.Helper()
	resp, _ := s.public.Post(t, path, body, "X-API-Key", s.Key)
	return resp.StatusCode
}

// One instance is down, because balancers log errors separately from requests.
// The large body exceeds the buffers of nginx.
func TestBalancerLogsNoTokensAndHidesMetrics(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		s.KillInstance(1)
		get := func(path string) int {
			resp, _ := s.public.Call(t, http.MethodGet, path)
			return resp.StatusCode
		}
		testkit.Equal(t, "large callback: status", s.post(t, "/api/v1/webhooks/bot/unknown", strings.Repeat(" ", 500_000)), http.StatusUnauthorized)
		for n := range 8 {
			get(fmt.Sprintf("/ws/session?token=secret-token-%d", n))
		}
		for _, path := range []string{"/metrics", "/%6detrics"} {
			testkit.Equal(t, fmt.Sprintf("public %s: status", path), get(path), http.StatusNotFound)
		}
		testkit.Until(t, "the requests are logged", func() bool { return strings.Contains(s.Output(), "/metrics") })
		if log := s.Output(); !strings.Contains(log, "/ws/session") || strings.Contains(log, "secret-token") {
			t.Errorf("want requests to /ws/session without tokens in the log:\n%s", log)
		}
	})
}
