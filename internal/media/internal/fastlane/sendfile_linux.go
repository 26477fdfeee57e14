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

// sender sends files to one connection with sendfile(2). net.TCPConn would do so too,
// but from the file's own position, which connections that send the same file share.
type sender struct {
	socket syscall.RawConn

	// The response that is being sent. In closures it would need memory for each response.
	head         []byte // unsent part of the header
	file         int    // descriptor
	offset, size int64  // of the file
	err          error

	// Method values, which are created once, so that responses need no memory.
	sendOpened func(file uintptr)
	sendSome   func(socket uintptr) (done bool)
}

// newSender returns nil if the socket has no descriptor.
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
	s.sendOpened, s.sendSome = s.sendFile, s.write
	return s
}

// send sends a header and a file. It returns errNotCached if the file was closed.
func (s *sender) send(head []byte, f *source, size int64) error {
	s.head, s.offset, s.size, s.err = head, 0, size, nil
	// Control keeps the descriptor open until sendOpened returns, even if the cache
	// closes the file. Otherwise another file could get the same number.
	if err := f.raw.Control(s.sendOpened); err != nil {
		return errNotCached
	}
	return s.err
}

// sendFile sends the response. RawConn.Write calls write until that returns true, and
// waits in between until the socket is writable or its deadline expires.
func (s *sender) sendFile(file uintptr) {
	s.file = int(file)
	if err := s.socket.Write(s.sendSome); err != nil {
		s.err = err
	}
}

// write sends until the response is complete, the socket's buffer is full, or a call
// fails. It returns false if the buffer is full.
func (s *sender) write(socket uintptr) (done bool) {
	s.err = nil // of an earlier call
	for s.err == nil && len(s.head) > 0 {
		var n int
		n, s.err = syscall.SendmsgN(int(socket), s.head, nil, nil, syscall.MSG_MORE|syscall.MSG_NOSIGNAL) // MSG_MORE: the file follows
		s.head = s.head[max(n, 0):]
	}
	for s.err == nil && s.offset < s.size {
		var n int
		n, s.err = syscall.Sendfile(int(socket), s.file, &s.offset, int(s.size-s.offset)) // advances the offset
		if n == 0 && s.err == nil {
			s.err = io.ErrUnexpectedEOF
		}
	}
	if errors.Is(s.err, syscall.EINTR) {
		return s.write(socket)
	}
	return !errors.Is(s.err, syscall.EAGAIN)
}
