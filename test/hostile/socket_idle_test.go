package hostile

import (
	"fmt"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// The stack of the reader is the largest part of an idle socket's memory. The garbage
// collector, which also runs in a server without work, shrinks it to 4 KB if little of
// it is in use.
func TestIdleSocketsHaveSmallStacks(t *testing.T) {
	onAllStores(t, harness.Env{"SESSION_PING_INTERVAL": "300s"}, func(a *target) { // the clients answer no pings
		stacks := func() (bytes float64) {
			_, metrics := a.instance.Call(a.T, "GET", "/metrics")
			_, value, _ := strings.Cut(metrics, "\ngo_memstats_stack_inuse_bytes ")
			if _, err := fmt.Sscan(value, &bytes); err != nil {
				a.Fatalf("read the size of all stacks: %v", err)
			}
			return bytes
		}
		const sockets, maxStack = 200, 6 << 10
		before := stacks()
		for range sockets {
			a.connect()
		}
		testkit.Until(a, fmt.Sprintf("the stack of an idle socket has at most %d bytes", maxStack), func() bool { return (stacks()-before)/sockets <= maxStack })
		a.Logf("stack of a socket: %.0f bytes", (stacks()-before)/sockets)
	})
}
