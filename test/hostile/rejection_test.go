package hostile

import (
	"strings"
	"testing"
)

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
