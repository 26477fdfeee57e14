package app

import (
	"context"
	"runtime"
	"testing"
	"time"
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
	for deadline := time.Now().Add(time.Minute); m.HeapReleased < before+garbage/2; runtime.ReadMemStats(&m) {
		if time.Now().After(deadline) {
			t.Fatalf("released %[2]d of %[1]d MiB", garbage>>20, (int64(m.HeapReleased)-int64(before))>>20)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
