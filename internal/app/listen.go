package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"telapi/internal/config"
)

// portInUse is the error for a port that another program uses. Its text is for people.
type portInUse string

func (e portInUse) Error() string { return string(e) }

func (e portInUse) Unwrap() error { return syscall.EADDRINUSE }

// listenTCP listens on a port that is configured with prefix_HOST and prefix_PORT.
func listenTCP(ctx context.Context, host string, port int, prefix string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, portInUse(fmt.Sprintf("port %d is in use: stop the other program, or set %s_PORT=%d (0 selects a free port)", port, prefix, port+10))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s_HOST=%s, %s_PORT=%d: %w", prefix, host, prefix, port, err)
	}
	return l, nil
}

// listenAPI listens on TELAPI_HOST and TELAPI_PORT, with TLS if it is enabled.
func listenAPI(ctx context.Context, cfg config.Config) (net.Listener, error) {
	tcp, err := listenTCP(ctx, cfg.Host, cfg.Port, "TELAPI")
	if err != nil {
		return nil, err
	}
	l := &listener{TCPListener: tcp.(*net.TCPListener)}
	if !cfg.APITLSEnabled {
		return l, nil
	}
	tlsConfig, err := cfg.EdgeTLS()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return tls.NewListener(l, tlsConfig), nil
}

// listener accepts the connections that were opened before Close: their clients may
// have sent requests already. The operating system would reset those that wait to be
// accepted.
type listener struct {
	*net.TCPListener
	accepting atomic.Bool               // Accept was called
	closing   atomic.Bool               // Close was called
	closed    atomic.Pointer[time.Time] // when Close woke Accept
}

const (
	handshakeTime = 10 * time.Millisecond // for connections that are being opened
	acceptTimeout = time.Second           // if clients open new ones all the time
)

// Accept returns net.ErrClosed after Close when no more connections wait.
func (l *listener) Accept() (net.Conn, error) {
	l.accepting.Store(true)
	for {
		closed := l.closed.Load()
		if closed != nil {
			wait := min(handshakeTime, acceptTimeout-time.Since(*closed))
			_ = l.SetDeadline(time.Now().Add(wait))
		}
		conn, err := l.TCPListener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if closed != nil { // no more connections wait, or acceptTimeout has passed
			_ = l.TCPListener.Close()
			return nil, net.ErrClosed
		}
	}
}

// Close makes Accept return an error after the last waiting connection. The second Close
// closes the port at once, as does the first if Accept was never called.
func (l *listener) Close() error {
	if !l.accepting.Load() || l.closing.Swap(true) {
		if err := l.TCPListener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	now := time.Now()
	err := l.SetDeadline(now) // wakes Accept
	l.closed.Store(&now)      // from now on, Accept sets the deadline
	return err
}
