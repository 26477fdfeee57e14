package servers

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// FreePort returns an unused loopback TCP port below the ephemeral range, so that
// no outgoing connection of a parallel test takes it before the server does. The
// port plus 10,000, which a Redis Cluster bus uses by default, is below it too.
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
