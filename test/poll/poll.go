// Package poll waits in tests for conditions that other goroutines or processes
// bring about.
package poll

import (
	"testing"
	"time"
)

const (
	interval = 5 * time.Millisecond
	timeout  = 20 * time.Second // enough for a busy machine
)

// Until calls ok until it returns true. It fails the test if that takes too long;
// what says what was expected.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !ok(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen within %v: %s", timeout, what)
		}
	}
}
