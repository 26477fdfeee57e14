package operations

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"telapi/test/poll"
	"telapi/test/servers"
)

// TestCallbacksPassWithoutADatabase: calls that are up go on, behind either
// balancer, and what needs the database is refused in words.
func TestCallbacksPassWithoutADatabase(t *testing.T) {
	for balancer, refused := range map[string]int{"HAProxy": http.StatusBadGateway, "nginx": http.StatusServiceUnavailable} {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			database := servers.StartPostgres(t, servers.PostgresOptions{})
			s := newSiteOn(t, balancer, database.URL())
			database.Stop()
			poll.Until(t, "the balancer knows", func() bool {
				return s.post(t, "/api/v1/sessions/token", "{}") == refused
			})
			for range 30 {
				// A token that nobody knows is what an instance says; a balancer would not.
				if status := s.post(t, "/api/v1/webhooks/bot/nobody", "{}"); status != http.StatusUnauthorized {
					t.Fatalf("a callback got %d", status)
				}
				if status := s.post(t, "/api/v1/sessions/token", "{}"); status != refused {
					t.Fatalf("a request for a token got %d", status)
				}
			}
		})
	}
}

func (s *site) post(t *testing.T, path, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.public.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", s.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.public.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestBalancerLogsNoTokensAndHidesMetrics has one instance dead, since errors
// are logged apart from requests, and a body too large for a buffer.
func TestBalancerLogsNoTokensAndHidesMetrics(t *testing.T) {
	for balancer := range balancers {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, balancer)
			_ = s.instances[1].Cmd.Process.Kill()
			s.instances[1].Ended(10 * time.Second)
			get := func(path string) int {
				resp, err := s.public.Client.Get(s.public.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				return resp.StatusCode
			}
			if status := s.post(t, "/api/v1/webhooks/bot/nobody", strings.Repeat(" ", 500_000)); status != http.StatusUnauthorized {
				t.Errorf("a large callback got %d", status)
			}
			for n := range 8 {
				get(fmt.Sprintf("/ws/session?token=hush-hush-%d", n))
			}
			for _, path := range []string{"/metrics", "/%6detrics"} {
				if status := get(path); status != http.StatusNotFound {
					t.Errorf("%s answers %d in public", path, status)
				}
			}
			poll.Until(t, "the requests are logged", func() bool { return strings.Contains(s.said(), "/metrics") })
			if said := s.said(); !strings.Contains(said, "/ws/session") || strings.Contains(said, "hush") {
				t.Errorf("the log of the sockets is:\n%s", said)
			}
		})
	}
}
