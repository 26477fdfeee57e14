package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/internal/fault"
	"telapi/internal/httpapi"
)

const (
	instanceStartTimeout = 30 * time.Second
	instanceStopTimeout  = 12 * time.Second // longer than instances take to shut down
	metricsTimeout       = 2 * time.Second
)

// instances are the processes of telapi dev --instances. They use the stores that this process
// has opened. It forwards each request to the next running instance.
type instances struct {
	command     func(context.Context) *exec.Cmd // of every instance
	transport   *http.Transport
	log         *slog.Logger
	stopTimeout time.Duration
	ctx         context.Context // lets the processes shut down when it ends
	shutDown    context.CancelFunc

	mu       sync.Mutex
	all      []*instance          // by number, which counts from 1; nil: stopped
	sessions map[string]*instance // by session: the one that has its newest socket
	// lastHandshake is the index of the instance that got the newest handshake, lastRequest
	// that of the newest other request. A session begins with one of each: with a common
	// index, every second instance would get all handshakes and the others none.
	lastHandshake, lastRequest int
}

// instance is a process that has not ended.
type instance struct {
	number int
	cmd    *exec.Cmd
	host   string        // empty until it accepts requests
	ready  chan struct{} // closed when host is set, or never will be
	exited chan struct{} // closed when the process has ended
}

func newInstances(ctx context.Context, count int, command func(context.Context) *exec.Cmd, log *slog.Logger) *instances {
	s := &instances{
		command:     command,
		transport:   &http.Transport{DisableCompression: true, DisableKeepAlives: true}, // a kept connection may belong to a killed instance
		log:         log,
		stopTimeout: instanceStopTimeout,
		all:         make([]*instance, count),
		sessions:    map[string]*instance{},
	}
	s.ctx, s.shutDown = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// List implements httpapi.Instances.
func (s *instances) List(sessionID string) []httpapi.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]httpapi.Instance, len(s.all))
	for n, current := range s.all {
		list[n] = httpapi.Instance{Number: n + 1, State: "stopped"}
		if current != nil {
			list[n].State, list[n].PID, list[n].Serving = "starting", current.cmd.Process.Pid, s.sessions[sessionID] == current
		}
		if current.isRunning() {
			list[n].State = "running"
		}
	}
	return list
}

// isRunning reports whether the instance accepts requests. The caller holds mu.
func (i *instance) isRunning() bool { return i != nil && i.host != "" }

// Metrics implements httpapi.Instances. It leaves out an instance that does not answer.
func (s *instances) Metrics(ctx context.Context) (all []byte) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	s.mu.Lock()
	running := slices.DeleteFunc(slices.Clone(s.all), func(i *instance) bool { return !i.isRunning() })
	s.mu.Unlock()
	for _, i := range running {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+i.host+"/metrics", http.NoBody)
		if err != nil {
			continue
		}
		resp, err := s.transport.RoundTrip(req)
		if err != nil {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it is read
		if err == nil && resp.StatusCode == http.StatusOK {
			all = append(all, body...)
		}
	}
	return all
}

// Start implements httpapi.Instances.
func (s *instances) Start(ctx context.Context, number int) error {
	i, err := s.launch(number)
	if err != nil || i == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, instanceStartTimeout)
	defer cancel()
	select {
	case <-i.ready:
		if i.host != "" {
			return nil
		}
		err = errors.New("the process ended; see its log")
	case <-ctx.Done():
		err = ctx.Err()
	}
	i.kill()
	return fault.Unavailable(fmt.Sprintf("Instance %d", number), fmt.Errorf("start instance: %w", err))
}

// launch starts the process of an instance. It returns nil if there is one, or after close.
func (s *instances) launch(number int) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current, err := s.find(number)
	if err != nil || current != nil || s.ctx.Err() != nil {
		return nil, err
	}
	i := &instance{number: number, cmd: s.command(s.ctx), ready: make(chan struct{}), exited: make(chan struct{})}
	stdin, stdinErr := i.cmd.StdinPipe()
	stdout, stdoutErr := i.cmd.StdoutPipe()
	i.cmd.Cancel = func() error { return stdin.Close() } // the process shuts down when its input ends
	i.cmd.WaitDelay = s.stopTimeout                      // after which it is killed
	if err = errors.Join(stdinErr, stdoutErr); err == nil {
		err = i.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start instance %d: %w", number, err)
	}
	s.all[number-1] = i
	go s.watch(i, stdout)
	return i, nil
}

// watch reads the address of a new process and waits for its end.
func (s *instances) watch(i *instance, stdout io.Reader) {
	host, _ := bufio.NewReader(stdout).ReadString('\n') // empty if the process ends first
	s.mu.Lock()
	i.host = strings.TrimSpace(host)
	s.mu.Unlock()
	close(i.ready)
	err := i.cmd.Wait()
	s.log.InfoContext(s.ctx, "instance ended", "instance", i.number, "pid", i.cmd.Process.Pid, "cause", err)
	s.mu.Lock()
	s.all[i.number-1] = nil
	maps.DeleteFunc(s.sessions, func(_ string, serving *instance) bool { return serving == i })
	s.mu.Unlock()
	close(i.exited)
}

// Kill implements httpapi.Instances.
func (s *instances) Kill(number int) error {
	s.mu.Lock()
	i, err := s.find(number)
	s.mu.Unlock()
	if i != nil {
		i.kill()
	}
	return err
}

// kill ends the process and waits for its end.
func (i *instance) kill() {
	_ = i.cmd.Process.Kill() // fails only if it has ended
	<-i.exited
}

// find returns an instance, or nil if it is stopped. The caller holds mu.
func (s *instances) find(number int) (*instance, error) {
	if number < 1 || number > len(s.all) {
		return nil, fault.New(fault.NotFound, "There is no instance %d. Use a number from 1 to %d.", number, len(s.all))
	}
	return s.all[number-1], nil
}

// close lets all instances shut down, kills those that take too long, and waits for their end.
func (s *instances) close() {
	s.shutDown()
	s.mu.Lock()
	list := slices.Clone(s.all)
	s.mu.Unlock()
	for _, i := range list {
		if i != nil {
			<-i.exited
		}
	}
}
