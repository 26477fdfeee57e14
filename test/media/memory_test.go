package media

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// The memory limit stays above the memory in use. Otherwise the garbage collector
// would run all the time.
func TestMemoryLimitFollowsMemoryInUse(t *testing.T) {
	const use = 200 << 20 // bytes; the service alone needs less
	limit := func() int64 {
		runtime.GC() // measures the memory in use
		return debug.SetMemoryLimit(-1)
	}
	s := harness.StartMedia(t) // in this process, without a memory cache
	testkit.Until(t, "a limit is set", func() bool { return limit() < use })
	buffer := make([]byte, use)
	testkit.Until(t, "the limit is raised", func() bool { return limit() > use })
	runtime.KeepAlive(buffer)
	s.Stop()
	if got := limit(); got != math.MaxInt64 {
		t.Errorf("limit is %d after the service stopped, want none", got)
	}
}
