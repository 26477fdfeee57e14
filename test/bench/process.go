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
	"time"

	"telapi/test/testkit"
)

// process is a server process. It ends with bench.
type process struct {
	cmd  *exec.Cmd
	line string // first line of output
}

// start starts a server and waits for its first line of output.
func start(cmd *exec.Cmd) *process {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := must(cmd.StdoutPipe())
	check(cmd.Start())
	p := &process{cmd: cmd}
	var b [1]byte
	for !strings.HasSuffix(p.line, "\n") {
		if _, err := out.Read(b[:]); err != nil {
			check(fmt.Errorf("%s exited during startup: %w", cmd.Path, err))
		}
		p.line += string(b[:])
	}
	p.line = strings.TrimSpace(p.line)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

// kill stops a server without draining it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// resident returns the resident memory in bytes.
func (p *process) resident() float64 {
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))
	kib := regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`).FindSubmatch(status)
	return must(strconv.ParseFloat(string(kib[1]), 64)) * 1024
}

// pids returns a process ID and those of the children.
func pids(parent int) []int {
	list := []int{parent}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	for _, child := range strings.Fields(string(children)) {
		list = append(list, must(strconv.Atoi(child)))
	}
	return list
}

// cpuTime returns the CPU time of processes in seconds.
func cpuTime(pids []int) (seconds float64) {
	const ticks = 100 // USER_HZ
	for _, pid := range pids {
		seconds += (statField(pid, 11) + statField(pid, 12)) / ticks
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

// measureCPU adds the CPU time per unit of the servers, the stores and bench to a
// result.
func (s *site) measureCPU(servers []*process, run func() result) result {
	cpu := s.cpuTimes(servers)
	before, start := cpu(), time.Now()
	r := run()
	units := r.perSecond * time.Since(start).Seconds()
	for i, after := range cpu() {
		r.costs = append(r.costs, (after-before[i])*1e6/units)
	}
	return r
}

// cpuTimes returns a function that returns the CPU time so far, in seconds, in the order
// of result.costs.
func (s *site) cpuTimes(servers []*process) func() []float64 {
	redis, postgres := s.storePIDs()
	var ours []int
	for _, p := range servers {
		ours = append(ours, pids(p.cmd.Process.Pid)...)
	}
	return func() []float64 {
		return []float64{cpuTime(ours), cpuTime(redis), cpuTime([]int{os.Getpid()}), cpuTime(postgres)}
	}
}

// await polls until a condition is true.
func await(what string, ok func() bool) { testkit.Until(program, what, ok) }
