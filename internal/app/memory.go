package app

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"telapi/internal/sleep"
)

// giveMemoryBack collects garbage while little goes on, so that a while passes
// without a collection, and lets the system have what that frees. Most sockets are
// idle, and thousands that came at once would otherwise go on to hold twice the
// memory they need.
func giveMemoryBack(ctx context.Context, while time.Duration) {
	collections := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	for last := uint64(0); sleep.For(ctx, while) == nil; {
		metrics.Read(collections)
		now := collections[0].Value.Uint64()
		if now == last {
			debug.FreeOSMemory()
		}
		last = now // without our own: the next while is let pass
	}
}

// boundMemory keeps the heap from growing to twice what the objects take before
// garbage is collected. The bound gives way to what is in use, by thousands of
// connections: below that the collector would run all the time. A number in
// GOMEMLIMIT has the last word.
func (m *Media) boundMemory(ctx context.Context) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for bound := int64(0); ; {
		metrics.Read(used)
		needed := max(int64(m.cfg.MediaMemoryBytes), int64(used[0].Value.Uint64()+used[1].Value.Uint64())) //nolint:gosec // memory has fewer bytes
		if next := needed + needed/4 + 64<<20; next != bound {
			bound = next
			debug.SetMemoryLimit(bound)
		}
		if sleep.For(ctx, time.Second) != nil {
			return
		}
	}
}
