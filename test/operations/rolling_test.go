package operations

import (
	"context"
	"encoding/json"
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

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Both instances are restarted one after the other under load. No request fails,
// and all sockets resume.
func TestRollingRestartUnderLoad(t *testing.T) {
	const sockets = 20
	forEachBalancer(t, func(t *testing.T, s *installation) {
		load := s.startLoad(4, sockets)
		for n := range s.Instances {
			before := load.answered.Load()
			if err := s.Instances[n].Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if code := s.Instances[n].WaitExit(t); code != 0 {
				t.Fatalf("instance %d: exit code %d after draining, want 0", n, code)
			}
			s.StartInstance(n)
			s.AwaitHealthy(n)
			// Restart the next instance when the balancer uses this one again.
			testkit.Until(t, "requests reach the new instance", func() bool { return s.requests(n) > 20 })
			if load.answered.Load() == before {
				t.Error("no requests during the restart")
			}
		}
		testkit.Until(t, "every socket has resumed or a request failed", func() bool {
			return load.resumed.Load() >= sockets || load.failed.Load() > 0
		})
		load.stop()
		if n := load.failed.Load(); n > 0 {
			t.Errorf("%d of %d requests and sockets failed, first: %v", n, load.answered.Load(), load.firstFailure.Load())
		}
		t.Logf("%d requests, %d echoed messages, %d resumed sockets", load.answered.Load(), load.echoed.Load(), load.resumed.Load())
	})
}

func TestBalancerReturns502WithoutHealthyInstance(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		for n := range s.Instances {
			s.KillInstance(n)
		}
		testkit.Until(t, "the balancer returns 502", func() bool {
			resp, err := s.public.Client.Get(s.URL + "/api/v1/endpoints")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusBadGateway
		})
	})
}

// Rate limits apply to the address of the connection, not to X-Forwarded-For
// headers of clients.
func TestRateLimitUsesClientAddressBehindBalancer(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		get := func(client *http.Client, forwardedFor string) int {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/endpoints", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-API-Key", s.Key)
			req.Header.Set("X-Forwarded-For", forwardedFor)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			return resp.StatusCode
		}
		busy, quiet := s.Client(net.IPv4(127, 0, 0, 2)), s.Client(net.IPv4(127, 0, 0, 3))
		s.Telapi("limits", "set", "--tier", "api", "--max", "5", "--window", "1h")
		testkit.Until(t, "the busy client is limited despite changing headers", func() bool {
			return get(busy, "203.0.113."+fmt.Sprint(time.Now().UnixNano()%250)) == http.StatusTooManyRequests
		})
		if status := get(quiet, "127.0.0.2"); status != http.StatusOK {
			t.Errorf("other client: status %d, want 200", status)
		}
	})
}

func TestReconnectingSocketReachesSameInstance(t *testing.T) {
	forEachBalancer(t, func(t *testing.T, s *installation) {
		for range 6 {
			id, token := s.issue()
			var counts [2]int // sockets per instance
			for range 4 {
				b, err := s.dial(id, token, "")
				if err != nil {
					t.Fatal(err)
				}
				testkit.Until(t, "the socket is counted", func() bool {
					one, two := s.sockets(0), s.sockets(1)
					counts[0], counts[1] = counts[0]+one, counts[1]+two
					return one+two == 1
				})
				_ = b.Close()
				testkit.Until(t, "the socket is closed", func() bool { return s.sockets(0)+s.sockets(1) == 0 })
			}
			if counts != [2]int{4, 0} && counts != [2]int{0, 4} {
				t.Errorf("sockets per instance: %v, want all 4 on one", counts)
			}
		}
	})
}

func (s *installation) issue() (id, token string) {
	s.t.Helper()
	return harness.Issue(s.t, s.public, s.Key, map[string]any{"endpointId": s.Endpoint, "mode": "chat"})
}

func (s *installation) dial(id, token, query string) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}, HandshakeTimeout: testkit.Timeout, TLSClientConfig: s.TLS()}
	conn, resp, err := d.DialContext(s.t.Context(), "wss"+strings.TrimPrefix(s.URL, "https")+"/ws/session"+query, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to session %s: %w %s", id, err, harness.Body(resp))
	}
	return conn, nil
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

// load is the load during a restart and its results.
type load struct {
	answered, failed, echoed, resumed atomic.Int64
	firstFailure                      atomic.Value // string
	stop                              func()
}

func (l *load) fail(format string, args ...any) {
	l.firstFailure.CompareAndSwap(nil, fmt.Sprintf(format, args...))
	l.failed.Add(1)
}

// startLoad starts HTTP clients, sockets and a runtime that echoes their
// messages. stop ends them and waits.
func (s *installation) startLoad(clients, sockets int) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			client := s.Client(nil)
			for ctx.Err() == nil {
				for _, request := range []struct{ method, path, body string }{
					{"GET", "/api/v1/endpoints", ""},
					{"POST", "/api/v1/sessions/token", `{"mode":"chat","endpointId":"` + s.Endpoint + `"}`},
				} {
					l.request(client, s, request.method, request.path, request.body)
				}
			}
		})
	}
	runtime := harness.StartRuntime(s.t, s.Env)
	for range sockets {
		id, token := s.issue()
		wg.Go(func() { s.converse(ctx, l, id, token) })
		wg.Go(func() {
			ch, err := runtime.Accept(ctx, nil)
			for err == nil {
				var d calls.Delivery
				if d, err = ch.Receive(ctx); err != nil {
					break
				}
				if d.Entry.Kind == wire.KindFrame && d.Entry.Message.Type == wire.TypeChat {
					err = ch.Send(s.t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: d.Entry.Message.Chat})
				}
				if err == nil {
					err = ch.Commit(s.t.Context(), d.Position)
				}
			}
			if ctx.Err() == nil {
				l.fail("runtime: %v", err)
			}
		})
	}
	l.stop = func() { cancel(); wg.Wait() }
	return l
}

func (l *load) request(client *http.Client, s *installation, method, path, body string) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err == nil {
		req.Header.Set("X-API-Key", s.Key)
		req.Header.Set("Content-Type", "application/json")
		var resp *http.Response
		if resp, err = client.Do(req); err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if err == nil && resp.StatusCode >= 300 {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
	}
	l.answered.Add(1)
	if err != nil {
		l.fail("%s %s: %v", method, path, err)
	}
}

// converse sends numbers and waits for the echo of each. When the socket closes,
// it reconnects with its cursor and resends the last number with the same ID.
func (s *installation) converse(ctx context.Context, l *load, id, token string) {
	query, next, messageID := "", 0, uuid.NewString()
	ticks := time.Tick(20 * time.Millisecond) // the limit is 60 frames a second
	for ctx.Err() == nil {
		conn, err := s.dial(id, token, query)
		if err != nil {
			l.fail("%v", err)
			return
		}
		send := func() {
			_ = conn.WriteMessage(websocket.TextMessage, []byte(harness.Frame("chat", id, messageID, "chat", fmt.Sprintf(`{"text":"%d"}`, next))))
		}
		for ctx.Err() == nil {
			_ = conn.SetReadDeadline(time.Now().Add(testkit.Timeout))
			var m struct {
				Type, StreamID string
				Chat           struct{ Text string }
				Status         struct {
					Event, ConnectionID, StreamID string
					Resumed                       bool
				}
				Reconnect struct{ Recovered *bool }
			}
			if _, raw, err := conn.ReadMessage(); err != nil || json.Unmarshal(raw, &m) != nil {
				if !websocket.IsCloseError(err, websocket.CloseServiceRestart) && ctx.Err() == nil {
					l.fail("socket ended with %v", err)
				}
				break
			}
			switch {
			case m.Status.Event == "ready":
				if query == "" {
					query = "?streamId=" + m.Status.StreamID
				}
				send()
			case m.Reconnect.Recovered != nil:
				l.resumed.Add(1)
				if !*m.Reconnect.Recovered {
					l.fail("messages were lost")
				}
			case m.Type == "chat":
				query = "?streamId=" + m.StreamID
				if m.Chat.Text != fmt.Sprint(next) {
					l.fail("echo is %s, want %d", m.Chat.Text, next)
				}
				l.echoed.Add(1)
				next, messageID = next+1, uuid.NewString()
				<-ticks
				send()
			}
		}
		_ = conn.Close()
	}
}
