// Package leaks finds goroutines that tests leave behind. It is not part of testkit, so
// that the tests of callruntime, which other modules import, need no clients of servers.
package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// timeout is long, so that tests pass on a busy machine.
const timeout = time.Minute

// Verify fails the test if goroutines that were started since before do not end.
func Verify(t testing.TB, before goleak.Option) {
	t.Helper()
	if err := find(before); err != nil {
		t.Error(err)
	}
}

// Main is the body of a TestMain. It runs the tests and exits. It fails if goroutines are
// left that do not end.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// find returns an error if goroutines do not end. goleak itself waits for less than a
// second.
func find(options ...goleak.Option) error {
	deadline := time.Now().Add(timeout)
	err := goleak.Find(options...)
	for err != nil && time.Now().Before(deadline) {
		err = goleak.Find(options...)
	}
	return err
}
