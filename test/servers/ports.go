package servers

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// FreePort returns a loopback TCP port that nothing listens on. It is drawn
// below the range from which the kernel takes source ports of outgoing
// connections, so that no client of a parallel test grabs it before the server
// does; adding 10,000, as a Redis Cluster bus does, stays below it too.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(12_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port
	}
	t.Fatal("no free port found in 100 tries")
	return 0
}
