package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"telapi/test/testkit"
)

func TestIdleProcessReleasesMemory(t *testing.T) {
	const garbage = 64 << 20
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	defer func() { stop(); <-done }()

	var stats runtime.MemStats
	block := make([]byte, garbage)
	for i := range block {
		block[i] = 1 // makes the operating system allocate the page
	}
	runtime.ReadMemStats(&stats)
	before := stats.HeapReleased
	runtime.KeepAlive(block)
	go func() { releaseMemory(ctx, 300*time.Millisecond); close(done) }()
	testkit.Until(t, "half of the block is released", func() bool {
		runtime.ReadMemStats(&stats)
		return stats.HeapReleased >= before+garbage/2
	})
}

func TestSmallHeapIsCollectedLessOften(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer debug.SetGCPercent(100)
	defer stop()
	collectLessOften(ctx)
	var held []byte
	// growth returns by how much the heap may grow before the next collection.
	growth := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.NextGC - stats.HeapAlloc
	}
	testkit.Until(t, "a small heap to grow by minGrowth", func() bool { return growth() > minGrowth*3/4 })
	held = make([]byte, 2*minGrowth)
	testkit.Until(t, "a large heap to double", func() bool { g := growth(); return g > minGrowth*3/2 && g < 5*minGrowth })
	runtime.KeepAlive(held)
}
