package servers

import (
	"os"
	"slices"
	"sync"
	"testing"
)

// cleanups stop servers that the tests of one binary share.
var cleanups struct {
	sync.Mutex
	list []func()
}

// atEnd registers a function for Main to call. The last one runs first.
func atEnd(f func()) {
	cleanups.Lock()
	defer cleanups.Unlock()
	cleanups.list = append(cleanups.list, f)
}

// Main is the body of a TestMain. It runs the tests, stops shared servers and
// exits.
func Main(m *testing.M) {
	code := m.Run()
	for _, f := range slices.Backward(cleanups.list) {
		f()
	}
	os.Exit(code)
}
