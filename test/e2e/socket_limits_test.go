package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/internal/ratelimit"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Fragments, control frames and audio within the limits do not close a socket.
func TestFramesWithinTheBudgetAreAccepted(t *testing.T) {
	b, _ := startService(t, nil).connect(t)
	id := uuid.NewString()
	chat := harness.Frame("chat", b.Session, id, "chat", `{"text":"in fragments"}`)
	send := harness.RawFrame(true, websocket.PingMessage, "ping") + harness.RawFrame(true, websocket.PongMessage, "unrequested") + harness.RawFrame(false, websocket.TextMessage, chat[:40])
	for n := 40; n < len(chat); n++ {
		send += harness.RawFrame(false, 0, chat[n:n+1])
	}
	send += harness.RawFrame(true, websocket.PingMessage, "between fragments") + harness.RawFrame(true, 0, "")
	for range 400 {
		send += harness.RawFrame(true, websocket.TextMessage, harness.Frame("audio", b.Session, uuid.NewString(), "audio", `{"data":""}`))
	}
	_, err := io.WriteString(b.Conn.NetConn(), send)
	testkit.Must(t, err)
	b.Expect(`"event":"ack"`, id)
	b.Expect(`"event":"ack"`, b.Chat("still open"))
}

// wantLimited checks that a handshake is rejected with a limit, and that a plain GET reports it.
func wantLimited(t *testing.T, i *harness.Instance, token string, status int, limit string) {
	t.Helper()
	_, resp, err := harness.Dial(t, i, token, "")
	if body := harness.Body(resp); err == nil || resp.StatusCode != status || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, limit) {
		t.Fatalf("handshake: %v, %s; want %d with Retry-After and %s", err, body, status, limit)
	}
	expectStatus(t, status, limit)(i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token))
}

// An instance has a maximum number of sockets, and a team has a share of them. A socket that
// is closed makes room.
func TestConnectionsOfInstanceAreLimited(t *testing.T) {
	i := harness.Start(t, harness.Env{"SESSION_MAX_CONNECTIONS": "2", "TEAM_SHARE_PERCENT": "50"})
	first, second, third := harness.NewTenant(t, i, "first"), harness.NewTenant(t, i, "second"), harness.NewTenant(t, i, "third")
	b, _ := first.Connect(t, i)
	id, token := first.Session(t, i)
	wantLimited(t, i, token, http.StatusTooManyRequests, `{"limit":"sockets","max":1}`)
	second.Connect(t, i)
	_, other := third.Session(t, i)
	wantLimited(t, i, other, http.StatusServiceUnavailable, `{"limit":"sockets","max":2}`)
	b.Expect(`"event":"ack"`, b.Chat("still here"))
	b.Cut()
	harness.Reconnect(t, i, id, token, "").Expect(`"event":"ready"`)
}

func TestHandshakesOfSessionAreLimited(t *testing.T) {
	const limit = 3 // few, so that they fit into a minute on a busy machine
	svc := startService(t, harness.Env{"SESSION_MAX_HANDSHAKES_PER_MINUTE": fmt.Sprint(limit)})
	id, token := svc.session(t)
	var last *harness.Browser
	for range limit {
		last = harness.Connect(t, svc.Instance, id, token, "")
	}
	last.Expect(`"event":"ready"`)
	wantLimited(t, svc.Instance, token, http.StatusTooManyRequests, `"limit":"session_handshakes","max":3,"window":60`)
	last.Expect(`"event":"ack"`, last.Chat("still here")) // the rejected handshake did not replace the socket
	svc.connect(t)
}

// Plain GETs count, even with a valid token, before the database is read.
func TestPlainSocketRequestsAreLimited(t *testing.T) {
	svc := startService(t, nil)
	_, token := svc.session(t)
	setLimit(t, svc.Instance, ratelimit.API, 5, time.Hour)
	testkit.Until(t, "the requests are limited", func() bool {
		resp, body := svc.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token)
		return resp.StatusCode == http.StatusTooManyRequests && strings.Contains(body, `"tier":"api"`)
	})
}

// Metrics count frames, replays, recoveries and closes. Audio frames are not rate
// limited.
func TestSocketMetrics(t *testing.T) {
	svc := startService(t, harness.Env{})
	b, token, ch := svc.conversation(t)
	const audio = 200 // more than the limit of other frames
	for n := range audio {
		b.Send("audio", "audio", fmt.Sprintf(`{"n":%d}`, n))
	}
	b.Expect(`"event":"ack"`, b.Chat("and a word"))
	testkit.Must(t, ch.SendAudio(t.Context(), []byte(`{"n":1}`)))
	b.Expect(`"type":"audio"`, `{"n":1}`)
	cursor := sendNumbered(t, b, ch, 1, 1)[0]

	b.Cut()
	testkit.Until(t, "only the runtime's socket is left", func() bool { return hasMetric(t, svc.Instance, "\ntelapi_sockets 1\n") })
	harness.SendChat(t, ch, `{"n":2}`)
	harness.SendChat(t, ch, `{"n":3}`)
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	b.Expect(`"event":"ready"`)
	b.Expect(`{"n":2}`)
	b.Expect(`{"n":3}`)
	b.Expect(`"recovered":true`)
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId=garbage")
	b.Expect(`"event":"ready"`)
	b.Expect(`"recovered":false`)

	for _, line := range []string{
		fmt.Sprintf(`telapi_frames_total{direction="to_ari",type="audio"} %d`, audio),
		`telapi_frames_total{direction="to_ari",type="chat"} 1`,
		`telapi_frames_total{direction="to_browser",type="chat"} 3`,
		`telapi_frame_ack_seconds_count 1`,
		`telapi_messages_replayed_total 2`,
		`telapi_recoveries_total{outcome="recovered"} 1`,
		`telapi_recoveries_total{outcome="failed"} 1`,
		`telapi_sockets_closed_total{code="4502"} 1`,
		"\ntelapi_sockets 2\n", // with that of the runtime
	} {
		testkit.Until(t, line, func() bool { return hasMetric(t, svc.Instance, line) })
	}
}
