package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/testcalls"
)

const claimSamples = 60

// claims measures the memory of an instance for the claims of idle sessions on one runtime
// connection, beyond that for the same sessions while another process has claimed them.
func claims(at *site, s settings) {
	raiseFileLimit(s.idle)
	fmt.Printf("memory of %d claims of idle sessions on one connection\n", s.idle)
	// The sockets answer no pings. Frequent collections keep garbage out of the figures.
	t := at.startTelapi("SESSION_PING_INTERVAL=5m", "GOGC=5")
	defer t.kill()
	_, conns := openSockets([]*telapi{t}, s.idle, s.connections)
	defer closeAll(conns)
	direct := at.directRuntime()
	defer direct.Close()
	ctx := context.Background()
	channels := make([]*calls.Channel, s.idle)
	parallel(s.idle, s.connections, func(i int) { channels[i] = must(testcalls.Accept(ctx, direct, "direct", nil)) })
	before := t.liveMemory()
	parallel(s.idle, s.connections, func(i int) { check(channels[i].Close(ctx)) })
	runtime := t.connectRuntime()
	defer runtime.Close()
	parallel(s.idle, s.connections, func(int) {
		c := must(runtime.Accept(ctx, wire.Accept{}))
		d := must(c.Receive(ctx)) // the session is connected
		check(c.Commit(ctx, d.Position))
	})
	if open := t.metric("telapi_runtime_claims"); open != float64(s.idle) {
		check(fmt.Errorf("%v sessions are claimed, want %d", open, s.idle))
	}
	after := t.liveMemory()
	count := float64(s.idle)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "from the store", before/count)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "/ws/runtime", after/count)
	fmt.Printf("  %-18s %8.0f bytes/claim (target: at most 2048)\n", "difference", (after-before)/count)
}

// liveMemory returns the bytes of heap and stacks after a garbage collection: the least of
// many samples. They span a renewal of all claims.
func (t *telapi) liveMemory() float64 {
	least := math.Inf(1)
	for range claimSamples {
		<-time.After(500 * time.Millisecond)
		least = min(least, t.metric("go_memstats_heap_alloc_bytes")+t.metric("go_memstats_stack_inuse_bytes"))
	}
	return least
}
