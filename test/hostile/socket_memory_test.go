package hostile

import (
	"testing"

	"telapi/test/harness"
)

// Sockets that never read what is replayed to them need little memory. The embedded
// store's memory contains the histories, 18 MB each, and no copy of them.
func TestUnreadReplaysNeedLittleMemory(t *testing.T) {
	onAllStores(t, nil, func(a *target) {
		tokens := make([]string, 2)
		for n := range tokens {
			_, tokens[n] = a.fullSession()
		}
		a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
			for n := range 2 * 29 { // one handshake of each session filled its history
				if _, resp, err := harness.Dial(a.T, a.instance, tokens[n%2], "?streamId=start"); err != nil {
					a.Fatalf("handshake %d: %v %s", n, err, harness.Body(resp))
				}
			}
		})
	})
}
