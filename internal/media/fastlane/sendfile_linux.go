package fastlane

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// source is an open file that any number of connections send from at a time.
type source struct {
	*os.File
	raw syscall.RawConn
}

func newSource(f *os.File) (*source, error) {
	raw, err := f.SyscallConn()
	return &source{f, raw}, err
}

// spareFiles is how many files may be kept open: the others are for connections.
func spareFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return limit.Cur / 4
}

// sender has the kernel send a head and a file behind it. It belongs to one
// connection and is made once, so that an answer makes no garbage.
type sender struct {
	socket syscall.RawConn
	open   func(file uintptr)
	push   func(socket uintptr) bool

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
	s.open = func(file uintptr) {
		s.file = int(file)
		if err := s.socket.Write(s.push); err != nil {
			s.err = err
		}
	}
	s.push = func(socket uintptr) bool {
		s.err = s.fill(int(socket))
		return !errors.Is(s.err, syscall.EAGAIN)
	}
	return s
}

// send fails with errGone, and has sent nothing, if the file was closed.
func (s *sender) send(head []byte, f *source, size int64) error {
	s.head, s.offset, s.size, s.err = head, 0, size, nil
	if err := f.raw.Control(s.open); err != nil { // keeps it from being closed meanwhile
		return errGone
	}
	return s.err
}

// fill writes as much as the socket takes.
func (s *sender) fill(socket int) error {
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
