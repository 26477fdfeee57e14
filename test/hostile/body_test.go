package hostile

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"telapi/callruntime/wire"
	"telapi/test/harness"
)

// send sends a request with a callback token and returns the status: 0 if there is no response.
func (a *target) send(method, path, token, body string) int {
	req, err := http.NewRequestWithContext(a.Context(), method, a.instance.URL+path, strings.NewReader(body))
	if err != nil {
		a.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("token", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0 // the server may answer and close before it has read the body
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// statuses counts the answers to concurrent requests.
type statuses struct {
	mu     sync.Mutex
	counts map[int]int
}

func (s *statuses) add(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[int]int{}
	}
	s.counts[status]++
}

// expect fails the test if there were other answers. 0 is a closed connection.
func (s *statuses) expect(t *testing.T, allowed ...int) {
	t.Helper()
	for _, status := range slices.Sorted(maps.Keys(s.counts)) {
		if !slices.Contains(allowed, status) {
			t.Errorf("%d answers with status %d, want only %v", s.counts[status], status, allowed)
		}
	}
	t.Logf("answers by status: %v", s.counts)
}

// Large bodies that are expensive to decode, with a made-up, a used and a valid token.
func TestExpensiveBodiesNeedBoundedMemory(t *testing.T) {
	onAllStores(t, nil, attackExpensiveBodiesNeedBoundedMemory)
}

func attackExpensiveBodiesNeedBoundedMemory(a *target) {
	t := a.T
	ch := a.openChannel()
	item, used := a.item(ch, wire.ScopeChannel), a.item(ch, wire.ScopeItem)
	if status := a.send(http.MethodPost, harness.Path(used), used.Token, `{"conversation":{"identifier":{"id":"call-1"}}}`); status != http.StatusAccepted {
		t.Fatalf("first use of a token: %d, want 202", status)
	}
	head := `{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[`
	bodies := map[string]string{
		"65,000 empty messages": head + strings.Repeat(`{"content":0},`, 65_000) + `{}]}}`,
		"9,000 messages":        head + strings.Repeat(`{"content":0},`, 9_000) + `{}]}}`,
		"nulls":                 head + strings.Repeat(`null,`, 32_000) + `null]}}`,
		"numbers":               head + strings.Repeat(`0,`, 32_000) + `0]}}`,
		"500,000 elements":      head + strings.Repeat(`0,`, 500_000) + `0]}}`,
		"members":               `{"metadata":{` + members(9_000) + `},"nluData":{` + members(9_000) + `}}`,
		"deep":                  strings.Repeat(`[`, 1<<19) + strings.Repeat(`]`, 1<<19),
		"channel data":          `{"channelData":[` + strings.Repeat(`{"key":"a"},`, 9_000) + `{}]}`,
		"actions":               `{"actions":[` + strings.Repeat(`{"type":0},`, 9_000) + `{}]}`,
		"500 messages":          head + strings.Repeat(`{"content":{"textMessage":{"textPlain":"`+strings.Repeat("a", 1_900)+`"}}},`, 499) + `{"content":{}}]}}`,
	}
	names := slices.Sorted(maps.Keys(bodies))
	a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
		for token, allowed := range map[string][]int{"made-up": {401, 429, 0}, used.Token: {409, 429, 503}, item.Token: {400, 202, 409, 429, 503}} {
			var got statuses
			inParallel(200, func(i int) { got.add(a.send(http.MethodPost, harness.Path(item), token, bodies[names[i%len(names)]])) })
			got.expect(t, allowed...)
		}
	})
}

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return b.String()[1:]
}

// Requests that never send the last byte of their body.
func TestUnfinishedBodiesNeedBoundedMemory(t *testing.T) {
	a := startTarget(t, nil)
	item := a.item(a.openChannel(), wire.ScopeChannel)
	const size = 900 << 10
	a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
		for _, token := range []string{"made-up", item.Token} {
			inParallel(600, func(int) {
				conn := a.dial()
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\ntoken: %s\r\nContent-Length: %d\r\n\r\n", harness.Path(item), token, size)
				_, _ = io.WriteString(conn, strings.Repeat("[", 15<<10)) // fails if the server has already rejected the body
				if token == item.Token {
					_, _ = io.WriteString(conn, strings.Repeat("[", size-15<<10-1))
				}
			})
		}
		if status := a.send(http.MethodPost, harness.Path(item), item.Token, `{"conversation":{"identifier":{"id":"call-1"}}}`); status != http.StatusAccepted {
			t.Errorf("a small callback was answered %d during the attack, want 202", status)
		}
	})
}

// maxLogGrowth is how much the log of an instance may grow while one client sends
// requests that are rejected, in bytes: the requests within its limits, which have at
// most one line each, and the counts.
const maxLogGrowth = 1 << 20

// Requests that are rejected count in a tier, and fill neither log nor memory.
func TestRejectedRequestsDoNotFillTheLog(t *testing.T) {
	a := startTarget(t, nil)
	long := "/" + strings.Repeat("%00", 5_000)
	requests := []struct{ method, path string }{
		{"GET", "/unknown"}, {"GET", long}, {"PATCH", "/health"}, {"GET", "/api/v1/endpoints"}, {"GET", "//x/../y"},
		{"POST", "/api/v1/webhooks/bot/call-1"}, {"OPTIONS", "/ws/session"}, {"POST", "/api/v1/sessions/token"},
	}
	var got statuses
	a.attack(growth{log: maxLogGrowth, redis: 32 << 20, database: 1 << 20}, func() {
		inParallel(8_000, func(i int) {
			r := requests[i%len(requests)]
			got.add(a.send(r.method, r.path, "", ""))
		})
	})
	got.expect(t, 204, 401, 404, 405, 415, 429)
	if got.counts[429] < 4_000 {
		t.Errorf("%d of 8,000 requests were answered 429, want at least 4,000", got.counts[429])
	}
}
