package servers

import (
	"os"
	"slices"
	"sync"
	"testing"
)

// ends stops what the tests of one binary share.
var ends struct {
	sync.Mutex
	list []func()
}

// atEnd has f called by Main, last come first served.
func atEnd(f func()) {
	ends.Lock()
	defer ends.Unlock()
	ends.list = append(ends.list, f)
}

// Main is the body of a TestMain: it runs the tests, stops what they shared
// and exits.
func Main(m *testing.M) {
	code := m.Run()
	for _, f := range slices.Backward(ends.list) {
		f()
	}
	os.Exit(code)
}
