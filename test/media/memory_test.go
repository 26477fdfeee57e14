package media

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"telapi/test/boot"
	"telapi/test/poll"
)

// The memory limit stays above the memory in use. Otherwise the garbage collector
// would run all the time.
func TestMemoryLimitFollowsMemoryInUse(t *testing.T) {
	limit := func() int64 {
		runtime.GC() // measures the memory in use
		return debug.SetMemoryLimit(-1)
	}
	s := boot.StartMedia(t) // in this process, without a memory cache
	poll.Until(t, "a limit is set", func() bool { return limit() < 200<<20 })
	use := make([]byte, 200<<20)
	poll.Until(t, "the limit is raised", func() bool { return limit() > 200<<20 })
	runtime.KeepAlive(use)
	s.Stop()
	if limit() != math.MaxInt64 {
		t.Error("the limit remains after the service stopped")
	}
}
