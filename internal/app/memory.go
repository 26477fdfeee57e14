package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"telapi/internal/background"
)

const (
	releaseInterval = 10 * time.Second
	memoryReserve   = 64 << 20 // garbage of the media service besides a quarter of its cache
	defaultGOGC     = 100      // garbage in percent of the heap that is in use
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

// limitGarbage lets garbage grow to a quarter of the size of the cached files plus memoryReserve
// before it is collected, instead of to their whole size. It returns a function that restores
// the previous limit. If GOGC is set, limitGarbage does nothing.
func limitGarbage(cachedBytes int64) (undo func()) {
	percent := min(defaultGOGC, 25+100*memoryReserve/max(1, cachedBytes))
	previous := debug.SetGCPercent(int(percent))
	undo = func() { debug.SetGCPercent(previous) }
	if previous != defaultGOGC {
		undo()
	}
	return undo
}
