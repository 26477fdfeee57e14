package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// servePeer is a bare net/http server that writes the bytes it read from stdin
// to whoever asks.
func servePeer(settings) error {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println(listener.Addr())
	length := strconv.Itoa(len(body))
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", length)
		_, _ = w.Write(body)
	}))
}

// startPeer runs servePeer in a process of its own and returns its address.
func startPeer(body []byte) (addr string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("find myself: %w", err)
	}
	cmd := exec.Command(self, "-peer")
	cmd.Stdin = strings.NewReader(string(body))
	return startServer(cmd)
}

// startServer starts a process that prints its address in its first line.
func startServer(cmd *exec.Cmd) (line string, stop func(), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	var b [1]byte
	for !strings.HasSuffix(line, "\n") {
		if _, err := out.Read(b[:]); err != nil {
			stop()
			return "", nil, fmt.Errorf("%s ended before it listened: %w", cmd.Path, err)
		}
		line += string(b[:])
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return strings.TrimSpace(line), stop, nil
}
