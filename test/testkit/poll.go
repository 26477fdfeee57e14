package testkit

import (
	"testing"
	"time"
)

// Timeout is how long Until waits, and how long servers may take to start, stop and
// respond. It is long so that tests pass on a busy machine.
const Timeout = time.Minute

const (
	firstInterval = time.Millisecond
	maxInterval   = 100 * time.Millisecond // below the default rate limit of 600 requests a minute
)

// Until waits until ok returns true. It fails the test after Timeout; what
// describes the condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Timeout, what, ok)
}

// Within is Until with another timeout. Use a short one if the condition also becomes
// true later for another reason, such as the expiry of a cache.
func Within(t testing.TB, timeout time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for interval := firstInterval; !ok(); interval = min(2*interval, maxInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after %s waiting for: %s", timeout, what)
		}
		time.Sleep(interval)
	}
}
