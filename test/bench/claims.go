package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"telapi/callruntime"
	"telapi/internal/calls"
)

// claims measures the memory of an instance for the claims of idle sessions on one runtime
// connection, beyond that for the same sessions while another process has claimed them.
func claims(at *site, s settings) error {
	if at.redisURL == "" {
		return fmt.Errorf("redis-server is not installed")
	}
	if err := raiseFileLimit(s.idle); err != nil {
		return err
	}
	fmt.Printf("memory of %d claims of idle sessions on one connection\n", s.idle)
	// The sockets answer no pings. Frequent collections keep garbage out of the figures.
	t, err := at.startTelapi("SESSION_PING_INTERVAL=5m", "GOGC=5")
	if err != nil {
		return err
	}
	defer t.kill()
	_, conns, err := openSockets([]*telapi{t}, s.idle, s.connections)
	defer closeAll(conns)
	if err != nil {
		return err
	}
	direct, err := calls.New(calls.Options{Store: storeOptions(at.redisURL), Name: "direct"})
	if err != nil {
		return err
	}
	defer direct.Close()
	ctx := context.Background()
	channels := make([]*calls.Channel, s.idle)
	if _, err := parallel(s.idle, s.connections, func(i int) (err error) {
		channels[i], err = direct.Accept(ctx, nil)
		return err
	}); err != nil {
		return err
	}
	before, err := t.liveMemory()
	if err != nil {
		return err
	}
	if _, err := parallel(s.idle, s.connections, func(i int) error { return channels[i].Close(ctx) }); err != nil {
		return err
	}
	runtime, err := t.connectRuntime()
	if err != nil {
		return err
	}
	defer runtime.Close()
	if _, err := parallel(s.idle, s.connections, func(int) error {
		c, err := runtime.Accept(ctx, callruntime.Filter{})
		if err != nil {
			return err
		}
		d, err := c.Receive(ctx) // the session is connected
		if err != nil {
			return err
		}
		return c.Commit(ctx, d.Position)
	}); err != nil {
		return err
	}
	if open, err := t.metric("telapi_runtime_claims"); err != nil || open != float64(s.idle) {
		return fmt.Errorf("%v sessions are claimed, want %d: %w", open, s.idle, err)
	}
	after, err := t.liveMemory()
	if err != nil {
		return err
	}
	count := float64(s.idle)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "from the store", before/count)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "/ws/runtime", after/count)
	fmt.Printf("  %-18s %8.0f bytes/claim (target: at most 2048)\n", "difference", (after-before)/count)
	return nil
}

// liveMemory returns the bytes of heap and stacks after a garbage collection: the least of
// many samples. They span a renewal of all claims.
func (t *telapi) liveMemory() (float64, error) {
	least := math.Inf(1)
	for range claimSamples {
		<-time.After(500 * time.Millisecond)
		heap, err := t.metric("go_memstats_heap_alloc_bytes")
		if err != nil {
			return 0, err
		}
		stacks, err := t.metric("go_memstats_stack_inuse_bytes")
		if err != nil {
			return 0, err
		}
		least = min(least, heap+stacks)
	}
	return least, nil
}
