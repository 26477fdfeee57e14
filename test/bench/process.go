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

// process is a server that ends with bench.
type process struct {
	cmd  *exec.Cmd
	line string // the first that it printed
}

// start starts a process and waits for its first line: where it listens.
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
			return nil, fmt.Errorf("%s ended before it listened: %w", cmd.Path, err)
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

// kill is for a server whose drain is of no interest.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

var residentLine = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// resident is the memory it holds, in bytes.
func (p *process) resident() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	m := residentLine.FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("no resident memory in the status of %s", p.cmd.Path)
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	return kib * 1024, err
}

// spentBy is the processor time a process has used, in seconds.
func spentBy(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before may hold anything
	fields := strings.Fields(rest)
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	const ticks = 100 // a second, on every Linux that Go runs on
	return (user + system) / ticks
}
