package media

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"telapi/test/boot"
)

// What is in use beside the objects, by thousands of connections, is never over
// the bound: the collector would run all the time.
func TestTheBoundOfMemoryGivesWayToWhatIsInUse(t *testing.T) {
	bound := func() int64 {
		runtime.GC() // finds what is in use
		return debug.SetMemoryLimit(-1)
	}
	s := boot.StartMedia(t) // with no memory for objects, in this process
	boot.Eventually(t, 10*time.Second, "there is a bound", func() bool { return bound() < 200<<20 })
	use := make([]byte, 200<<20)
	boot.Eventually(t, 10*time.Second, "the bound gives way", func() bool { return bound() > 200<<20 })
	runtime.KeepAlive(use)
	s.Stop()
	if bound() != math.MaxInt64 {
		t.Error("the bound outlives the service")
	}
}
