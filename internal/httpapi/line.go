package httpapi

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// line is the connection under a socket. It tells when everything that has
// arrived was read, and gathers what is written to one piece: a busy socket
// would cost a system call for each frame otherwise.
type line struct {
	net.Conn
	arrived syscall.RawConn // nil: it cannot tell, as with TLS
	drained func()          // called before it waits for more

	mu   sync.Mutex
	held *bytes.Buffer // nil: what is written goes out at once
}

var heldBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (l *line) Read(b []byte) (int, error) {
	if n := l.readArrived(b); n > 0 {
		return n, nil
	}
	l.drained()
	return l.Conn.Read(b)
}

// readArrived reads what is there without waiting. Whatever else it meets, the
// end included, Read meets again.
func (l *line) readArrived(b []byte) (n int) {
	if l.arrived == nil {
		return 0
	}
	_ = l.arrived.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), b)
		return true
	})
	return n
}

func (l *line) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		return l.held.Write(b)
	}
	return l.Conn.Write(b)
}

// hold keeps back what is written until release.
func (l *line) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = heldBuffers.Get().(*bytes.Buffer)
}

func (l *line) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held
	l.held = nil
	_, err := l.Conn.Write(held.Bytes())
	if held.Reset(); held.Cap() <= 64<<10 {
		heldBuffers.Put(held)
	}
	return err
}

// lineTaker hands the upgrade a line in place of the connection.
type lineTaker struct {
	http.ResponseWriter
	line *line
}

func (t lineTaker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.line.Conn = conn
	if direct, ok := conn.(syscall.Conn); ok && err == nil {
		t.line.arrived, err = direct.SyscallConn()
	}
	return t.line, buffers, err
}
