package hostile

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"telapi/test/harness"
)

// maxFlood is how much a client can send before its connection is closed, in bytes:
// the budget of a second, and what the buffers of both sides hold.
const maxFlood = 64 << 20

// Every kind of frame counts, so that no client can keep an instance busy. An audio
// frame in excess of its limit is dropped; a flood closes the socket.
func TestFloodsOfAnyFrameCloseTheSocket(t *testing.T) {
	const text, continuation, ping, pong = 1, 0, 9, 10
	fragments := func(payload string) func(string) string {
		return func(string) string {
			return harness.RawFrame(false, text, "") + strings.Repeat(harness.RawFrame(false, continuation, payload), 10_000)
		}
	}
	floods := map[string]func(session string) string{
		"pings":           func(string) string { return strings.Repeat(harness.RawFrame(true, ping, ""), 10_000) },
		"pongs":           func(string) string { return strings.Repeat(harness.RawFrame(true, pong, "x"), 10_000) },
		"empty fragments": fragments(""),
		"tiny fragments":  fragments("x"),
		"audio": func(session string) string {
			return harness.RawFrame(true, text, harness.Frame("audio", session, uuid.NewString(), "audio", fmt.Sprintf(`{"data":%q}`, strings.Repeat("A", 60<<10))))
		},
		"tiny audio": func(session string) string {
			return strings.Repeat(harness.RawFrame(true, text, harness.Frame("audio", session, uuid.NewString(), "audio", `{"data":""}`)), 1_000)
		},
		"invalid frames": func(session string) string {
			valid := harness.RawFrame(true, text, harness.Frame("ping", session, uuid.NewString(), "ping", "{}"))
			return strings.Repeat(strings.Repeat(harness.RawFrame(true, text, "{}"), 9)+valid, 100)
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
					data = []byte(strings.TrimPrefix(string(data), harness.RawFrame(false, text, ""))) // of a message in fragments, once
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

// Sockets that never read what is replayed to them need little memory. The embedded
// store's memory contains the histories, 18 MB each, and no copy of them.
func TestUnreadReplaysNeedLittleMemory(t *testing.T) {
	onAllStores(t, nil, func(a *target) {
		tokens := make([]string, 2)
		for n := range tokens {
			_, tokens[n] = a.fullSession()
		}
		a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
			for n := range 2 * 29 { // one handshake of each session filled its history
				if _, resp, err := harness.Dial(a.T, a.instance, tokens[n%2], "?streamId=start"); err != nil {
					a.Fatalf("handshake %d: %v %s", n, err, harness.Body(resp))
				}
			}
		})
	})
}
