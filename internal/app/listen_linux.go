package app

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// ignoreNewConnections makes the kernel drop the packets that open a connection (SYN
// without ACK). The client sends them again a second later.
func ignoreNewConnections(l *net.TCPListener) error {
	const (
		flagsOffset = 13 // in the TCP header
		syn, ack    = 0x02, 0x10
		wholePacket = 1<<32 - 1
	)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flagsOffset},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: wholePacket},
	}
	return control(l, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}) //nolint:gosec // five instructions
	})
}

// waitingConnections returns how many connections wait to be accepted.
func waitingConnections(l *net.TCPListener) (n uint32) {
	_ = control(l, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			n = info.Unacked // of a listener
		}
		return err
	})
	return n
}

func control(l *net.TCPListener, do func(fd int) error) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) { result = do(int(fd)) })
	return errors.Join(err, result)
}
