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
	"telapi/test/poll"
	"telapi/test/talk"
)

// TestRollingRestartFailsNothing restarts both instances behind each balancer,
// one after the other, while requests come in and sockets talk.
func TestRollingRestartFailsNothing(t *testing.T) {
	for balancer := range balancers {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, balancer)
			load := s.startLoad(4, 20)
			for n := range s.instances {
				seen := load.answered.Load()
				if err := s.instances[n].Cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if !s.instances[n].Ended(20 * time.Second) {
					t.Fatalf("instance %d did not drain", n)
				}
				s.start(n)
				s.await(n)
				// The next one goes only when this one is in the balancer's favour again.
				poll.Until(t, "requests reach the new instance", func() bool { return s.requests(n) > 20 })
				if load.answered.Load() == seen {
					t.Error("nothing was asked for during the restart")
				}
			}
			load.stop()
			if n := load.failed.Load(); n > 0 {
				t.Errorf("%d of %d requests failed: %v", n, load.answered.Load(), load.first.Load())
			}
			if load.resumed.Load() < 20 {
				t.Errorf("%d resumptions of 20 sockets that were all cut once at least", load.resumed.Load())
			}
			t.Logf("%d requests, %d messages each way, %d resumptions", load.answered.Load(), load.echoed.Load(), load.resumed.Load())
		})
	}
}

func TestBalancerAnswers502WithoutAHealthyInstance(t *testing.T) {
	for balancer := range balancers {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, balancer)
			for _, p := range s.instances {
				_ = p.Cmd.Process.Kill()
				p.Ended(10 * time.Second)
			}
			poll.Until(t, "502", func() bool {
				resp, err := s.public.Client.Get(s.public.URL + "/api/v1/endpoints")
				if err != nil {
					return false
				}
				_ = resp.Body.Close()
				return resp.StatusCode == http.StatusBadGateway
			})
		})
	}
}

// TestClientAddressPassesTheBalancer counts two clients apart, whatever they
// say of themselves.
func TestClientAddressPassesTheBalancer(t *testing.T) {
	for balancer := range balancers {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, balancer)
			ask := func(client *http.Client, pretending string) int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.public.URL+"/api/v1/endpoints", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-API-Key", s.key)
				req.Header.Set("X-Forwarded-For", pretending)
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				return resp.StatusCode
			}
			busy, quiet := s.client(net.IPv4(127, 0, 0, 2)), s.client(net.IPv4(127, 0, 0, 3))
			s.telapi("limits", "set", "--tier", "api", "--max", "5", "--window", "1h")
			poll.Until(t, "the busy client is refused under ever new names", func() bool {
				return ask(busy, "203.0.113."+fmt.Sprint(time.Now().UnixNano()%250)) == http.StatusTooManyRequests
			})
			if status := ask(quiet, "127.0.0.2"); status != http.StatusOK {
				t.Errorf("another client got %d", status)
			}
		})
	}
}

// TestSocketReturnsToItsInstance cuts a socket again and again.
func TestSocketReturnsToItsInstance(t *testing.T) {
	for balancer := range balancers {
		t.Run(balancer, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, balancer)
			for range 6 {
				id, token := s.issue()
				var homes [2]int
				for range 4 {
					b, err := s.dial(id, token, "")
					if err != nil {
						t.Fatal(err)
					}
					poll.Until(t, "the socket is counted", func() bool {
						one, two := s.sockets(0), s.sockets(1)
						homes[0], homes[1] = homes[0]+one, homes[1]+two
						return one+two == 1
					})
					_ = b.Close()
					poll.Until(t, "the socket is gone", func() bool { return s.sockets(0)+s.sockets(1) == 0 })
				}
				if homes != [2]int{4, 0} && homes != [2]int{0, 4} {
					t.Errorf("the session's sockets were spread as %v", homes)
				}
			}
		})
	}
}

func (s *site) issue() (id, token string) {
	s.t.Helper()
	return talk.Issue(s.t, s.public, s.key, map[string]any{"endpointId": s.endpoint, "mode": "chat"})
}

func (s *site) dial(id, token, query string) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}, HandshakeTimeout: 10 * time.Second, TLSClientConfig: s.tls()}
	conn, resp, err := d.DialContext(s.t.Context(), "wss"+strings.TrimPrefix(s.public.URL, "https")+"/ws/session"+query, nil)
	if err != nil {
		return nil, fmt.Errorf("open the socket of %s: %w %s", id, err, talk.Body(resp))
	}
	return conn, nil
}

// requests and sockets are what an instance's own metrics say.
func (s *site) requests(n int) int {
	return s.metric(n, `telapi_http_requests_total{method="GET",route="/api/v1/endpoints",status="200"}`)
}

func (s *site) sockets(n int) int { return s.metric(n, "telapi_sockets ") }

func (s *site) metric(n int, prefix string) (value int) {
	resp, err := http.Get("http://" + s.address(n) + "/metrics")
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

// traffic is what goes on during a restart, and how it fared.
type traffic struct {
	answered, failed, echoed, resumed atomic.Int64
	first                             atomic.Value // of type string
	stop                              func()
}

func (l *traffic) fail(format string, args ...any) {
	l.first.CompareAndSwap(nil, fmt.Sprintf(format, args...))
	l.failed.Add(1)
}

// startLoad lets clients ask and sockets talk to a runtime that echoes, until
// it is stopped; stopping waits for the last echo.
func (s *site) startLoad(clients, sockets int) *traffic {
	l := &traffic{}
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			client := s.client(nil)
			for ctx.Err() == nil {
				for _, request := range []struct{ method, path, body string }{
					{"GET", "/api/v1/endpoints", ""},
					{"POST", "/api/v1/sessions/token", `{"mode":"chat","endpointId":"` + s.endpoint + `"}`},
				} {
					l.request(client, s, request.method, request.path, request.body)
				}
			}
		})
	}
	runtime := talk.StartRuntime(s.t, s.env)
	for range sockets {
		id, token := s.issue()
		wg.Go(func() { s.converse(ctx, l, id, token) })
		wg.Go(func() {
			ch, err := runtime.Accept(ctx, nil)
			for err == nil {
				d, failed := ch.Receive(ctx)
				if err = failed; err != nil {
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

func (l *traffic) request(client *http.Client, s *site, method, path, body string) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.public.URL+path, strings.NewReader(body))
	if err == nil {
		req.Header.Set("X-API-Key", s.key)
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

// converse says a number, awaits its echo and says the next; a socket that is
// cut is opened again where it was left, and what was not acknowledged is said
// again under the same id.
func (s *site) converse(ctx context.Context, l *traffic, id, token string) {
	query, next, said := "", 0, uuid.NewString()
	for ctx.Err() == nil {
		conn, err := s.dial(id, token, query)
		if err != nil {
			l.fail("%v", err)
			return
		}
		say := func() {
			_ = conn.WriteMessage(websocket.TextMessage, []byte(talk.Frame("chat", id, said, "chat", fmt.Sprintf(`{"text":"%d"}`, next))))
		}
		for ctx.Err() == nil {
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
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
				say()
			case m.Reconnect.Recovered != nil:
				l.resumed.Add(1)
				if !*m.Reconnect.Recovered {
					l.fail("a position was lost")
				}
			case m.Type == "chat":
				query = "?streamId=" + m.StreamID
				if m.Chat.Text != fmt.Sprint(next) {
					l.fail("heard %s instead of %d", m.Chat.Text, next)
				}
				l.echoed.Add(1)
				next, said = next+1, uuid.NewString()
				time.Sleep(20 * time.Millisecond) // a person, not a flood: 60 frames a second are allowed
				say()
			}
		}
		_ = conn.Close()
	}
}
