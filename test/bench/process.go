package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// process is a server process. It ends with bench.
type process struct {
	cmd  *exec.Cmd
	line string // first line of output
}

// start starts a server and waits for its first line of output.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd}
	var b [1]byte
	for !strings.HasSuffix(p.line, "\n") {
		if _, err := out.Read(b[:]); err != nil {
			p.stop()
			return nil, fmt.Errorf("%s exited during startup: %w", cmd.Path, err)
		}
		p.line += string(b[:])
	}
	p.line = strings.TrimSpace(p.line)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// kill stops a server without draining it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

var residentLine = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// resident returns the resident memory in bytes.
func (p *process) resident() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	m := residentLine.FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("no VmRSS in the status of %s", p.cmd.Path)
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	return kib * 1024, err
}

// cpuTimes returns the CPU time of processes in seconds.
func cpuTimes(list []*process) (sum float64) {
	for _, p := range list {
		sum += cpuTime(p.cmd.Process.Pid)
	}
	return sum
}

// cpuTime returns the CPU time of a process in seconds.
func cpuTime(pid int) float64 {
	user, system := statField(pid, 11), statField(pid, 12)
	const ticks = 100 // USER_HZ
	return (user + system) / ticks
}

// cpuTimeOfChildren returns the CPU time of the processes that a process has
// started, such as PostgreSQL's servers, or 0 for nil.
func cpuTimeOfChildren(parent *os.Process) (seconds float64) {
	if parent == nil {
		return 0
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && statField(pid, 1) == float64(parent.Pid) {
			seconds += cpuTime(pid)
		}
	}
	return seconds
}

// statField returns a number of /proc/PID/stat. Field 0 follows the name of the
// process.
func statField(pid, i int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the process name may contain spaces
	value, _ := strconv.ParseFloat(strings.Fields(rest)[i], 64)
	return value
}
