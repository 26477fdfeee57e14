package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePort returns an unused loopback TCP port below the ephemeral range, so that
// no outgoing connection of a parallel test takes it before the server does. The
// port plus 10,000, which a Redis Cluster bus uses by default, is below it too.
//
// No other call of FreePort on this machine, also in other processes, returns the
// port before the test ends: the server may start later, and restart. Tests in Node use
// ports from 22,000.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(12_000)
		reservation, err := net.Listen("unix", fmt.Sprintf("@telapi-test-port-%d", port)) // abstract: ends with the process
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			_ = reservation.Close()
			continue
		}
		_ = l.Close()
		t.Cleanup(func() { _ = reservation.Close() })
		return port
	}
	t.Fatal("no free port found in 100 tries")
	return 0
}
