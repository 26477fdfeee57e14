package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// bystanderArg runs the test binary as a bystander.
const bystanderArg = "bystander"

// client is a browser with a session of its own.
type client struct{ URL, Session, Token string }

// bystanders is the number of clients. Several of them collect enough samples during
// an attack that takes seconds.
const bystanders = 4

// sample is one check of the health and one acknowledgement.
type sample struct {
	Start       time.Time
	Health, Ack time.Duration
}

// bystander is a process with clients that use the service as intended: they check the
// health and send frames, and report how long they wait. It is a process of its own so
// that it does not wait for the attackers, whose processor is not the server's.
type bystander struct {
	target *target
	cmd    *exec.Cmd
	stdin  io.Closer
	done   chan struct{}

	mu      sync.Mutex
	samples []sample
}

// startBystander starts a bystander.
func (a *target) startBystander() *bystander {
	a.Helper()
	clients := make([]client, bystanders)
	for i := range clients {
		clients[i].URL = a.instance.URL
		clients[i].Session, clients[i].Token = a.sessionOf(a.other)
	}
	config, err := json.Marshal(clients)
	testkit.Must(a, err)
	executable, err := os.Executable()
	testkit.Must(a, err)
	b := &bystander{target: a, cmd: exec.Command(executable, bystanderArg), done: make(chan struct{})}
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, inErr := b.cmd.StdinPipe()
	stdout, outErr := b.cmd.StdoutPipe()
	testkit.Must(a, errors.Join(inErr, outErr, b.cmd.Start()))
	a.Cleanup(func() { _ = b.cmd.Process.Kill() })
	b.stdin = stdin
	if _, err := fmt.Fprintf(stdin, "%s\n", config); err != nil {
		a.Fatal(err)
	}
	go func() {
		defer close(b.done)
		for lines := json.NewDecoder(stdout); ; {
			var s sample
			if lines.Decode(&s) != nil {
				return
			}
			b.mu.Lock()
			b.samples = append(b.samples, s)
			b.mu.Unlock()
		}
	}()
	return b
}

// wait waits for n more samples.
func (b *bystander) wait(n int) {
	b.target.Helper()
	b.mu.Lock()
	n += len(b.samples)
	b.mu.Unlock()
	testkit.Until(b.target, "a bystander is served", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.samples) >= n
	})
}

// stop ends the process, which must have been served all the time.
func (b *bystander) stop() {
	b.target.Helper()
	_ = b.stdin.Close()
	<-b.done
	if err := b.cmd.Wait(); err != nil {
		b.target.Errorf("the bystander failed: %v", err)
	}
}

// percentiles are the times that 99 of 100 requests took at most.
type percentiles struct {
	health, ack time.Duration
	samples     int
}

func (p percentiles) String() string {
	return fmt.Sprintf("health p99 %.1f ms, ack p99 %.1f ms, %d samples", millis(p.health), millis(p.ack), p.samples)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// between evaluates the samples of a period.
func (b *bystander) between(from, to time.Time) percentiles {
	b.mu.Lock()
	defer b.mu.Unlock()
	var healths, acks []time.Duration
	for _, s := range b.samples {
		if s.Start.After(from) && s.Start.Before(to) {
			healths, acks = append(healths, s.Health), append(acks, s.Ack)
		}
	}
	p99 := func(all []time.Duration) time.Duration {
		if len(all) == 0 {
			return 0
		}
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	return percentiles{p99(healths), p99(acks), len(acks)}
}

// runBystander is the process. It runs until stdin is closed.
func runBystander(stdin io.Reader, stdout io.Writer) (exitCode int) {
	var clients []client
	if err := json.NewDecoder(stdin).Decode(&clients); err != nil {
		fmt.Fprintln(os.Stderr, "bystander:", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { defer cancel(); _, _ = io.Copy(io.Discard, stdin) }()
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range clients {
		group.Go(func() error { return c.run(ctx, stdout) })
	}
	if err := group.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, "bystander:", err)
		return 1
	}
	return 0
}

// run sends requests, fewer than the limit of a connection, and prints a sample for
// each. Both requests must succeed, in whatever time a busy machine needs.
func (c client) run(ctx context.Context, stdout io.Writer) error {
	// Load balancers open a connection for every check.
	checker := http.Client{Timeout: testkit.Timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	dialer := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + c.Token}, HandshakeTimeout: testkit.Timeout}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(c.URL, "http")+"/ws/session", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, _, err := conn.ReadMessage(); err != nil { // ready
		return err
	}
	pace := time.NewTicker(25 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		s := sample{Start: time.Now()}
		resp, err := checker.Get(c.URL + "/health")
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /health: status %d, want 200", resp.StatusCode)
		}
		s.Health = time.Since(s.Start)
		id := uuid.NewString()
		_ = conn.SetReadDeadline(time.Now().Add(testkit.Timeout))
		start := time.Now()
		if err := conn.WriteMessage(websocket.TextMessage, []byte(harness.Frame("chat", c.Session, id, "chat", `{"text":"hello"}`))); err != nil {
			return err
		}
		_, ack, err := conn.ReadMessage()
		if err != nil || !strings.Contains(string(ack), id) {
			return fmt.Errorf("received %s, %w; want the acknowledgement of %s", ack, err, id)
		}
		s.Ack = time.Since(start)
		line, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "%s\n", line); err != nil {
			return err
		}
	}
}

// prioritize gives server, store and bystander a real-time priority. The attackers,
// which would run on other machines, then get only the processor time that these leave,
// so that the bystander waits in the server's queues and not for the attackers.
func (b *bystander) prioritize() {
	b.target.Helper()
	priorities := map[int]string{b.target.Cmd.Process.Pid: "1", b.cmd.Process.Pid: "2"}
	if b.target.redis != nil {
		priorities[b.target.redisInfo("process_id")] = "2"
	}
	for pid, priority := range priorities {
		out, err := exec.Command("chrt", "--all-tasks", "--rr", "--pid", priority, strconv.Itoa(pid)).CombinedOutput()
		if err != nil {
			b.target.Fatalf("chrt: %v %s", err, out)
		}
	}
}
