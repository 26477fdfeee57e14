package servers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to start, or to end.
const patience = 30 * time.Second

// process is a server that dies with the test binary, even if that is killed.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	out    *lockedBuffer
}

// launch starts a server, with SIGKILL for the day its parent dies where the
// command names no other signal.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, exited: make(chan struct{}), out: &lockedBuffer{}}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.WaitDelay = time.Second // a child of the server may keep the output open
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	started := make(chan error)
	go func() {
		// The kernel ties Pdeathsig to the thread that forked: keep that
		// thread for as long as the server lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	return p
}

// stop sends a signal and waits for the end. A server that has ended is left alone.
func (p *process) stop(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", s, p.cmd.Path, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s does not end after %v: %w", p.cmd.Path, s, p.cmd.Process.Kill())
	}
}

// await polls until the server is ready, and fails the test when it exits or
// takes too long.
func (p *process) await(t testing.TB, ready func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-p.exited:
			t.Fatalf("%s ended at start:\n%s", p.cmd.Path, p.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %v\n%s", p.cmd.Path, err, p.out)
		}
	}
}

// lockedBuffer may be read while the server still writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
