package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// SmallDisk mounts a tmpfs with options such as "size=1m,nr_inodes=20" until the
// test ends. It needs root.
func SmallDisk(t testing.TB, options string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "mounting a tmpfs needs root")
	}
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount tmpfs: %v", err)
		}
	})
	return dir
}

// FailCalls makes the listed system calls of a running process, such as "fsync",
// fail with errno, such as ENOSPC, until restore is called or the test ends. If path
// is not empty, only calls for this path fail.
func FailCalls(t testing.TB, pid int, calls, errno, path string) (restore func()) {
	t.Helper()
	args := []string{"-f", "-qq", "-o", "/dev/null", "-p", strconv.Itoa(pid), "-e", "trace=" + calls, "-e", "inject=" + calls + ":error=" + errno}
	if path != "" {
		args = append(args, "-P", path)
	}
	p := launch(t, exec.Command(need(t, "strace", "strace"), args...))
	restore = sync.OnceFunc(func() {
		if err := p.stop(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	p.await(t, func() error { return checkTraced(pid) })
	return restore
}

// checkTraced returns an error unless every thread of a process is traced.
func checkTraced(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		return fmt.Errorf("process %d not found: %w", pid, err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil || strings.Contains(string(status), "TracerPid:\t0\n") {
			return fmt.Errorf("%s is not traced (%w)", thread, err)
		}
	}
	return nil
}
