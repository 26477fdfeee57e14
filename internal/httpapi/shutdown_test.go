package httpapi

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"telapi/test/testkit"
)

// closeSignal is a listener that reports its first Close.
type closeSignal struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

func (l *closeSignal) Close() error {
	defer l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func TestConnectionOpenedBeforeShutdownIsServed(t *testing.T) {
	s, _ := newTestServer(func(x *exchange, _ *http.Request) error { x.WriteHeader(http.StatusNoContent); return nil })
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &closeSignal{Listener: tcp, closed: make(chan struct{})}
	served, shutDown := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	testkit.Until(t, "the connection is accepted", func() bool { return s.connections.count() == 1 })
	go func() { shutDown <- s.Shutdown(t.Context(), 0) }()
	<-l.closed
	if _, err := io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("status %d, want 204", resp.StatusCode)
	}
	if err := <-shutDown; err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v, want %v", err, http.ErrServerClosed)
	}
}
