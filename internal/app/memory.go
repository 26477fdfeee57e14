package app

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"telapi/internal/background"
)

const (
	releaseInterval = 10 * time.Second
	memoryReserve   = 64 << 20 // added to the memory limit of the media service
)

// releaseMemory returns unused memory to the operating system after an interval
// without a garbage collection. An instance with many idle sockets allocates little,
// so it would keep the memory of a burst of new sockets for a long time.
func releaseMemory(ctx context.Context, interval time.Duration) {
	collections := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	for previous := uint64(0); background.Sleep(ctx, interval) == nil; {
		metrics.Read(collections)
		current := collections[0].Value.Uint64()
		if current == previous {
			debug.FreeOSMemory() // counts as a collection, so that the next interval has one
		}
		previous = current
	}
}

// limitMemory sets a memory limit, so that the heap does not grow to twice the size
// of the cached files before garbage is collected. It adjusts the limit to the memory
// in use, because with a lower limit the collector would run all the time. If
// GOMEMLIMIT is set, limitMemory does nothing.
func (m *Media) limitMemory(ctx context.Context) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for limit := int64(0); ; {
		metrics.Read(used)
		needed := max(int64(m.cfg.MediaMemoryBytes), int64(used[0].Value.Uint64()+used[1].Value.Uint64())) //nolint:gosec // memory sizes fit into int64
		if next := needed + needed/4 + memoryReserve; next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
		if background.Sleep(ctx, time.Second) != nil {
			return
		}
	}
}
