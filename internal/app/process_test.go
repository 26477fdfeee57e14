package app

import (
	"context"
	"runtime"
	"testing"
	"time"

	"telapi/test/poll"
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
	poll.Until(t, "half of the block is released", func() bool {
		runtime.ReadMemStats(&stats)
		return stats.HeapReleased >= before+garbage/2
	})
}

func TestBallastDelaysCollections(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() { holdBallast(ctx); close(done) }()
	poll.Until(t, "the next collection waits for more than the ballast", func() bool {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.NextGC >= 2*ballastBytes
	})
}
