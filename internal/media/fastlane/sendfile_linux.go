package fastlane

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// source is an open file that many connections can send concurrently.
type source struct {
	*os.File
	raw syscall.RawConn
}

func newSource(f *os.File) (*source, error) {
	raw, err := f.SyscallConn()
	return &source{f, raw}, err
}

// maxCachedFiles returns how many files may be open. It leaves the other
// descriptors to connections.
func maxCachedFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return limit.Cur / 4
}

// sender sends a header and a file with sendfile. It belongs to one connection
// and is reused, so that responses don't allocate.
type sender struct {
	socket   syscall.RawConn
	onFile   func(file uintptr)        // for RawConn.Control of the file
	onSocket func(socket uintptr) bool // for RawConn.Write of the socket

	// The current response.
	head         []byte
	file         int
	offset, size int64
	err          error
}

func newSender(socket net.Conn) *sender {
	tcp, ok := socket.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	s := &sender{socket: raw}
	s.onFile = func(file uintptr) {
		s.file = int(file)
		if err := s.socket.Write(s.onSocket); err != nil {
			s.err = err
		}
	}
	s.onSocket = func(socket uintptr) bool {
		s.err = s.write(int(socket))
		return !errors.Is(s.err, syscall.EAGAIN)
	}
	return s
}

// send returns errGone if the file was closed. Then nothing was sent.
func (s *sender) send(head []byte, f *source, size int64) error {
	s.head, s.offset, s.size, s.err = head, 0, size, nil
	if err := f.raw.Control(s.onFile); err != nil { // the file cannot be closed during Control
		return errGone
	}
	return s.err
}

// write writes until the socket blocks.
func (s *sender) write(socket int) error {
	for len(s.head) > 0 {
		n, err := syscall.SendmsgN(socket, s.head, nil, nil, syscall.MSG_MORE|syscall.MSG_NOSIGNAL)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		s.head = s.head[max(n, 0):]
	}
	for s.offset < s.size {
		switch n, err := syscall.Sendfile(socket, s.file, &s.offset, int(s.size-s.offset)); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
