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

	var m runtime.MemStats
	block := make([]byte, garbage)
	for i := range block {
		block[i] = 1 // makes the system allocate it
	}
	runtime.ReadMemStats(&m)
	before := m.HeapReleased
	runtime.KeepAlive(block)
	go func() { releaseMemory(ctx, 300*time.Millisecond); close(done) }()
	poll.Until(t, "half of the block is released", func() bool {
		runtime.ReadMemStats(&m)
		return m.HeapReleased >= before+garbage/2
	})
}
