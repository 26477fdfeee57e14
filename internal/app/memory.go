package app

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"telapi/internal/sleep"
)

// releaseMemory returns unused memory to the operating system after each interval
// without a garbage collection. Most sockets are idle, and a burst of new ones would
// otherwise leave the process with twice the memory it needs.
func releaseMemory(ctx context.Context, interval time.Duration) {
	collections := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	for last := uint64(0); sleep.For(ctx, interval) == nil; {
		metrics.Read(collections)
		now := collections[0].Value.Uint64()
		if now == last {
			debug.FreeOSMemory()
		}
		last = now // excludes the collection by FreeOSMemory
	}
}

// limitMemory sets a memory limit, so that the heap does not grow to twice the size
// of the cached files before garbage is collected. The limit follows the memory in
// use, since the collector would run constantly below it. GOMEMLIMIT overrides it.
func (m *Media) limitMemory(ctx context.Context) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for limit := int64(0); ; {
		metrics.Read(used)
		needed := max(int64(m.cfg.MediaMemoryBytes), int64(used[0].Value.Uint64()+used[1].Value.Uint64())) //nolint:gosec // memory sizes fit into int64
		if next := needed + needed/4 + 64<<20; next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
		if sleep.For(ctx, time.Second) != nil {
			return
		}
	}
}
