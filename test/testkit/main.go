package testkit

import (
	"os"
	"slices"
	"sync"
	"testing"
)

// cleanups stop servers that the tests of one process share.
var cleanups struct {
	sync.Mutex
	list []func()
}

// Main is the body of a TestMain. It runs the tests, stops shared servers and
// exits.
func Main(m *testing.M) {
	code := m.Run()
	StopShared()
	os.Exit(code)
}

// StopShared stops the servers that were started with a Lasting.
func StopShared() {
	for _, f := range slices.Backward(cleanups.list) {
		f()
	}
}

// Lasting is a test, or a program, that starts servers for the rest of the process:
// StopShared stops them.
type Lasting struct{ testing.TB }

// Cleanup registers a function for StopShared. The last one runs first.
func (Lasting) Cleanup(f func()) {
	cleanups.Lock()
	defer cleanups.Unlock()
	cleanups.list = append(cleanups.list, f)
}

// TempDir returns a directory that StopShared removes.
func (l Lasting) TempDir() string {
	dir, err := os.MkdirTemp("", "telapi-test-")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Failed returns false: the servers don't log their output when they stop.
func (Lasting) Failed() bool { return false }
