package operations

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// Both instances are restarted one after the other under load, and no request fails. nginx does
// not know that an instance stops: a POST may be on a connection that the instance had not
// accepted when it closed its port.
// The campaign does the same with sockets.
func TestRollingRestartUnderLoad(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		var answered, lost atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				client := s.Client(nil)
				for ctx.Err() == nil {
					testkit.Equal(t, "GET: status", s.request(client, http.MethodGet, "/api/v1/endpoints", ""), http.StatusOK)
					switch status := s.request(client, http.MethodPost, "/api/v1/sessions/token", `{"mode":"chat","endpointId":"`+s.Endpoint+`"}`); {
					case status == http.StatusBadGateway && strings.HasSuffix(t.Name(), string(harness.Nginx)):
						lost.Add(1)
					case status != http.StatusCreated:
						t.Errorf("POST: status %d", status)
					}
					answered.Add(2)
				}
			})
		}
		for n := range s.Instances {
			before := answered.Load()
			testkit.Must(t, s.Instances[n].Cmd.Process.Signal(syscall.SIGTERM))
			if code := s.Instances[n].WaitExit(t); code != 0 {
				t.Fatalf("instance %d: exit code %d after draining, want 0", n, code)
			}
			s.StartInstance(n)
			s.AwaitHealthy(n)
			// Restart the next instance when the balancer uses this one again.
			testkit.Until(t, "requests reach the new instance", func() bool { return s.requests(n) > 20 })
			if answered.Load() == before {
				t.Error("no requests during the restart")
			}
		}
		stop()
		clients.Wait()
		if n := lost.Load(); n > int64(len(s.Instances)) {
			t.Errorf("%d requests got 502 in %d restarts", n, len(s.Instances))
		}
	})
}

// request returns the status of the response. It fails the test if there is none.
func (s *installation) request(client *http.Client, method, path, body string) (status int) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err == nil {
		req.Header.Set("X-API-Key", s.Key)
		req.Header.Set("Content-Type", "application/json")
		var resp *http.Response
		if resp, err = client.Do(req); err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			status = resp.StatusCode
		}
	}
	if err != nil {
		s.t.Errorf("%s %s: %v", method, path, err)
	}
	return status
}

func TestBalancerReturns502WithoutHealthyInstance(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		for n := range s.Instances {
			s.KillInstance(n)
		}
		testkit.Until(t, "the balancer returns 502", func() bool {
			resp, _ := s.public.Call(t, http.MethodGet, "/api/v1/endpoints")
			return resp.StatusCode == http.StatusBadGateway
		})
	})
}

// Rate limits apply to the address of the connection, not to X-Forwarded-For
// headers of clients.
func TestRateLimitUsesClientAddressBehindBalancer(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		get := func(client *http.Client, forwardedFor string) int {
			i := &harness.Instance{URL: s.URL, Client: client}
			resp, _ := i.Call(t, http.MethodGet, "/api/v1/endpoints", "X-API-Key", s.Key, "X-Forwarded-For", forwardedFor)
			return resp.StatusCode
		}
		busy, quiet := s.Client(net.IPv4(127, 0, 0, 2)), s.Client(net.IPv4(127, 0, 0, 3))
		s.Telapi("limits", "set", "--tier", "api", "--max", "5", "--window", "1h")
		testkit.Until(t, "the busy client is limited despite changing headers", func() bool {
			return get(busy, "203.0.113."+fmt.Sprint(time.Now().UnixNano()%250)) == http.StatusTooManyRequests
		})
		testkit.Equal(t, "other client: status", get(quiet, "127.0.0.2"), http.StatusOK)
	})
}

func TestReconnectingSocketReachesSameInstance(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		for range 6 {
			id, token := harness.Issue(t, s.public, s.Key, map[string]any{"endpointId": s.Endpoint, "mode": "chat"})
			var counts [2]int // sockets per instance
			for range 4 {
				b := harness.Connect(t, s.public, id, token, "")
				testkit.Until(t, "the socket is counted", func() bool {
					one, two := s.sockets(0), s.sockets(1)
					counts[0], counts[1] = counts[0]+one, counts[1]+two
					return one+two == 1
				})
				_ = b.Conn.Close()
				testkit.Until(t, "the socket is closed", func() bool { return s.sockets(0)+s.sockets(1) == 0 })
			}
			if counts != [2]int{4, 0} && counts != [2]int{0, 4} {
				t.Errorf("sockets per instance: %v, want all 4 on one", counts)
			}
		}
	})
}

// requests returns the number of requests that an instance has served.
func (s *installation) requests(n int) int {
	return s.metric(n, `telapi_http_requests_total{method="GET",route="/api/v1/endpoints",status="200"}`)
}

func (s *installation) sockets(n int) int { return s.metric(n, "telapi_sockets ") }

func (s *installation) metric(n int, prefix string) (value int) {
	resp, err := http.Get("http://" + s.Address(n) + "/metrics")
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, prefix) {
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &value)
		}
	}
	return value
}
