package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// process is a server that ends with the test binary, even if that is killed.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	out    *Buffer
}

// launch starts a server. Unless the command sets SysProcAttr, the server gets
// SIGKILL when the test binary ends.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, exited: make(chan struct{}), out: &Buffer{}}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.WaitDelay = time.Second // a child of the server may keep the pipes open
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends. Keep this
		// thread until the server exits.
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

// stop sends a signal and waits until the server exits. It kills the server after a
// timeout.
func (p *process) stop(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", s, p.cmd.Path, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(Timeout):
		return fmt.Errorf("%s does not exit within %s of %v: %w", p.cmd.Path, Timeout, s, p.cmd.Process.Kill())
	}
}

// await polls until ready returns nil. It fails the test if the server exits or
// the timeout expires.
func (p *process) await(t testing.TB, ready func() error) {
	t.Helper()
	deadline := time.Now().Add(Timeout)
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-p.exited:
			t.Fatalf("%s exited during startup:\n%s", p.cmd.Path, p.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready after %s: %v\n%s", p.cmd.Path, Timeout, err, p.out)
		}
	}
}
