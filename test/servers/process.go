package servers

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a server that dies with the test, even if the test binary is
// killed, and whose output is shown when the test fails.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	out    *lockedBuffer
}

// launch starts a server. Unless stop has ended it, it is killed at the end of
// the test.
func launch(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), exited: make(chan struct{}), out: &lockedBuffer{}}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel ties Pdeathsig to the thread that forked: keep that
		// thread for as long as the server lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.stop(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.out)
		}
	})
	return p
}

func (p *process) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %v to %s: %v", s, p.cmd.Path, err)
	}
}

// stop sends a signal and waits for the end.
func (p *process) stop(t testing.TB, s os.Signal) {
	t.Helper()
	p.signal(t, s)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		t.Errorf("%s does not end after %v", p.cmd.Path, s)
		_ = p.cmd.Process.Kill()
	}
}

// await polls until the server is ready, and fails the test when it exits or
// takes too long.
func (p *process) await(t testing.TB, ready func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
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
