package hostile

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// frame returns a WebSocket frame with a masking key of zeros.
func frame(final bool, opcode byte, payload string) string {
	header := []byte{opcode, 0x80 | 127}
	if final {
		header[0] |= 0x80
	}
	if len(payload) < 126 {
		header[1] = 0x80 | byte(len(payload))
	} else {
		header = binary.BigEndian.AppendUint64(header, uint64(len(payload)))
	}
	return string(header) + "\x00\x00\x00\x00" + payload
}

// maxFlood is how much a client can send before its connection is closed, in bytes:
// the budget of a second, and what the buffers of both sides hold.
const maxFlood = 64 << 20

// Every kind of frame counts, so that no client can keep an instance busy. An audio
// frame in excess of its limit is dropped; a flood closes the socket.
func TestFloodsOfAnyFrameCloseTheSocket(t *testing.T) {
	const text, continuation, ping, pong = 1, 0, 9, 10
	fragments := func(payload string) func(string) string {
		return func(string) string {
			return frame(false, text, "") + strings.Repeat(frame(false, continuation, payload), 10_000)
		}
	}
	floods := map[string]func(session string) string{
		"pings":           func(string) string { return strings.Repeat(frame(true, ping, ""), 10_000) },
		"pongs":           func(string) string { return strings.Repeat(frame(true, pong, "x"), 10_000) },
		"empty fragments": fragments(""),
		"tiny fragments":  fragments("x"),
		"audio": func(session string) string {
			return frame(true, text, harness.Frame("audio", session, uuid.NewString(), "audio", fmt.Sprintf(`{"data":%q}`, strings.Repeat("A", 60<<10))))
		},
		"tiny audio": func(session string) string {
			return strings.Repeat(frame(true, text, harness.Frame("audio", session, uuid.NewString(), "audio", `{"data":""}`)), 1_000)
		},
		"invalid frames": func(session string) string {
			valid := frame(true, text, harness.Frame("ping", session, uuid.NewString(), "ping", "{}"))
			return strings.Repeat(strings.Repeat(frame(true, text, "{}"), 9)+valid, 100)
		},
	}
	onAllStores(t, nil, func(a *target) { a.flood(floods) })
}

// flood attacks with one client for each kind of flood.
func (a *target) flood(floods map[string]func(session string) string) {
	const text = 1
	t := a.T
	a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
		var attackers sync.WaitGroup
		for name, flood := range floods {
			b := a.connect()
			attackers.Go(func() {
				data, sent := []byte(flood(b.Session)), 0
				for sent < 4*maxFlood {
					n, err := b.Conn.NetConn().Write(data)
					if sent += n; err != nil {
						break
					}
					data = []byte(strings.TrimPrefix(string(data), frame(false, text, ""))) // of a message in fragments, once
				}
				t.Logf("%s: %d KB sent", name, sent>>10)
				if sent > maxFlood {
					t.Errorf("%s: the client could send %d MB, want at most %d", name, sent>>20, maxFlood>>20)
				}
			})
			attackers.Go(func() {
				if code := b.CloseCode(); code != 4004 {
					t.Errorf("%s: close code %d, want 4004", name, code)
				}
			})
		}
		attackers.Wait()
	})
}

// Fragments, control frames and audio within the limits do not close a socket.
func TestFramesWithinTheBudgetAreAccepted(t *testing.T) {
	i := harness.Start(t, harness.Env{})
	tenant := harness.NewTenant(t, i, "tenant")
	session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	b := harness.Connect(t, i, session, token, "")
	b.Expect(`"event":"ready"`)
	id := uuid.NewString()
	chat := harness.Frame("chat", session, id, "chat", `{"text":"in fragments"}`)
	send := frame(true, 9, "ping") + frame(true, 10, "unrequested pong") + frame(false, 1, chat[:40])
	for n := 40; n < len(chat); n++ {
		send += frame(false, 0, chat[n:n+1])
	}
	send += frame(true, 9, "between fragments") + frame(true, 0, "")
	for range 400 {
		send += frame(true, 1, harness.Frame("audio", session, uuid.NewString(), "audio", `{"data":""}`))
	}
	if _, err := b.Conn.NetConn().Write([]byte(send)); err != nil {
		t.Fatal(err)
	}
	b.Expect(`"event":"ack"`, id)
	b.Expect(`"event":"ack"`, b.Chat("still open"))
}

// An instance has a maximum number of sockets, and a team has a share of them. The
// reason is also reported to a plain GET, and a socket that is closed makes room.
func TestConnectionsOfInstanceAreLimited(t *testing.T) {
	i := harness.Start(t, harness.Env{"SESSION_MAX_CONNECTIONS": "2", "TEAM_SHARE_PERCENT": "50"})
	tenants := []harness.Tenant{harness.NewTenant(t, i, "first"), harness.NewTenant(t, i, "second"), harness.NewTenant(t, i, "third")}
	issue := func(tenant harness.Tenant) (id, token string) {
		return harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	}
	connect := func(tenant harness.Tenant) *harness.Browser {
		id, token := issue(tenant)
		b := harness.Connect(t, i, id, token, "")
		b.Expect(`"event":"ready"`)
		return b
	}
	rejected := func(tenant harness.Tenant, status int, reason string) (id, token string) {
		t.Helper()
		id, token = issue(tenant)
		_, resp, err := harness.Dial(t, i, token, "")
		if err == nil || resp.StatusCode != status || resp.Header.Get("Retry-After") == "" {
			t.Fatalf("handshake: %v, %v; want %d with Retry-After", resp, err, status)
		}
		if plain, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token); plain.StatusCode != status || !strings.Contains(body, reason) {
			t.Errorf("plain GET: %d %s, want the reason of the handshake", plain.StatusCode, body)
		}
		return id, token
	}
	b := connect(tenants[0])
	otherID, otherToken := rejected(tenants[0], http.StatusTooManyRequests, `{"limit":"sockets","max":1}`)
	connect(tenants[1])
	rejected(tenants[2], http.StatusServiceUnavailable, `{"limit":"sockets","max":2}`)
	b.Expect(`"event":"ack"`, b.Chat("still here"))
	b.Cut()
	testkit.Until(t, "another socket is accepted", func() bool {
		conn, _, err := harness.Dial(t, i, otherToken, "")
		if err != nil {
			return false
		}
		b = &harness.Browser{Conn: conn, Session: otherID, T: t}
		return true
	})
	b.Expect(`"event":"ready"`)
}
