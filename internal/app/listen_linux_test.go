package app

import (
	"errors"
	"net"
	"testing"
	"time"

	"telapi/test/testkit"

	"golang.org/x/sys/unix"
)

func TestConnectionsThatWaitAreCounted(t *testing.T) {
	l, dial := startListener(t)
	for n := range uint32(3) {
		if got := waitingConnections(l.(*listener).TCPListener); got != n {
			t.Errorf("%d connections wait, want %d", got, n)
		}
		dial()
	}
}

func TestNewConnectionsAreIgnoredAfterClose(t *testing.T) {
	l, _ := startListener(t)
	if err := ignoreNewConnections(l.(*listener).TCPListener); errors.Is(err, unix.EPERM) && !testkit.Strict() {
		t.Skip("this machine allows socket filters only to root")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.DialTimeout("tcp", l.Addr().String(), 100*time.Millisecond); err == nil {
		_ = conn.Close()
		t.Error("a new connection was accepted")
	}
}
