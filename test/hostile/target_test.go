package hostile

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"telapi/callruntime"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// Limits on the resident memory of an instance, in MB.
const (
	maxDuring = 250
	maxAfter  = 100
)

// target is the built binary with default limits.
type target struct {
	*testing.T
	*boot.Process
	env  boot.Env
	host string
	url  string
	key  string // of the demo team, with every scope
}

func startTarget(t *testing.T) *target {
	t.Helper()
	env := boot.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}
	p := boot.StartProcess(t, env, "dev", "--no-demo")
	url := strings.Fields(p.WaitForLine(t, "API "))[1]
	key := strings.Fields(p.WaitForLine(t, "Demo key "))[2]
	return &target{t, p, env, strings.TrimPrefix(url, "http://"), url, key}
}

// memory returns a field of /proc/PID/status in MB, such as VmRSS or VmHWM, which is
// the peak of VmRSS.
func (a *target) memory(field string) int {
	a.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Cmd.Process.Pid))
	if err != nil {
		a.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == field+":" {
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				a.Fatal(err)
			}
			return kb / 1024
		}
	}
	a.Fatalf("/proc/PID/status has no %s", field)
	return 0
}

// checkMemory fails the test if the memory was or remains too high.
func (a *target) checkMemory() {
	a.Helper()
	peak := a.memory("VmHWM")
	if peak > maxDuring {
		a.Errorf("memory reached %d MB, want at most %d", peak, maxDuring)
	}
	poll.Until(a, fmt.Sprintf("memory is at most %d MB again", maxAfter), func() bool { return a.memory("VmRSS") <= maxAfter })
	a.Logf("memory: peak %d MB, now %d MB", peak, a.memory("VmRSS"))
}

// item returns a work item whose token may be used more than once.
func (a *target) item() callruntime.WorkItem {
	a.Helper()
	runtime := talk.StartRuntime(a.T, a.env)
	ch, err := runtime.Open(a.Context(), callruntime.OpenOptions{ChannelID: "call-1", TeamID: "tm_1", EndpointID: "ep_1"})
	if err != nil {
		a.Fatal(err)
	}
	item, err := ch.Await(a.Context(), callruntime.AwaitOptions{Scope: callruntime.ScopeChannel})
	if err != nil {
		a.Fatal(err)
	}
	return item
}

// dial opens a connection that is closed when the test ends.
func (a *target) dial() net.Conn {
	a.Helper()
	conn, err := net.Dial("tcp", a.host)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = conn.Close() })
	return conn
}

// inParallel runs attack n times, on a few goroutines.
func inParallel(n int, attack func(i int)) {
	const workers = 32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				attack(i)
			}
		})
	}
	wg.Wait()
}
