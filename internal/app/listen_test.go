package app

import (
	"errors"
	"net"
	"testing"
	"time"

	"telapi/internal/config"
)

// startListener returns a listener that has accepted a connection, and a function that
// opens another one.
func startListener(t *testing.T) (l net.Listener, dial func() net.Conn) {
	l, err := listenAPI(t.Context(), config.Config{Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	dial = func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	if conn, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	return l, dial
}

func TestConnectionsOpenedBeforeCloseAreAccepted(t *testing.T) {
	l, dial := startListener(t)
	const waiting = 20
	for range waiting {
		if _, err := dial().Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range waiting {
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want %v", err, net.ErrClosed)
	}
	if dial() != nil {
		t.Error("the port is still open")
	}
}

func TestCloseWakesAccept(t *testing.T) {
	l, _ := startListener(t)
	accepted := make(chan error)
	go func() { _, err := l.Accept(); accepted <- err }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want %v", err, net.ErrClosed)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestNewConnectionsDoNotKeepListenerOpen(t *testing.T) {
	l, dial := startListener(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		for dial() != nil { // until the port is closed
		}
	}()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	<-refused
}

// New connections cannot be ignored on every system.
func TestListenerIsClosedAfterTimeout(t *testing.T) {
	l, dial := startListener(t)
	before := time.Now().Add(-2 * acceptTimeout)
	l.(*listener).closed.Store(&before)
	dial()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want %v", err, net.ErrClosed)
	}
}

func TestUnusedListenerIsClosedAtOnce(t *testing.T) {
	l, err := listenAPI(t.Context(), config.Config{Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the port is still open")
	}
}
