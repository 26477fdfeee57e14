package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"telapi/internal/fault"
	"telapi/internal/httpapi"
)

const (
	instanceStartTimeout = 30 * time.Second
	metricsTimeout       = 2 * time.Second
	instanceStopTimeout  = 12 * time.Second // longer than instances take to shut down
)

// States of an instance.
const (
	instanceRunning  = "running"
	instanceStarting = "starting"
	instanceStopped  = "stopped"
)

// instances are the processes of telapi dev --instances. They join the stores of this
// process, which forwards requests to the running ones in turn.
type instances struct {
	command     func() *exec.Cmd
	transport   *http.Transport
	log         *slog.Logger
	stopTimeout time.Duration

	mu         sync.Mutex
	all        []*instance
	handshakes int // index of the instance that got the last one
	requests   int // the same for other requests; a session begins with one of each
	closed     bool
	sessions   map[string]*instance // that have the newest socket of a session
}

type instance struct {
	number int
	state  string
	host   string // while it is running
	cmd    *exec.Cmd
	stdin  io.Closer     // the process shuts down when it is closed, or when this process ends
	exited chan struct{} // closed when the process has ended
}

func newInstances(count int, command func() *exec.Cmd, log *slog.Logger) *instances {
	s := &instances{
		command:     command,
		transport:   &http.Transport{DisableCompression: true, DisableKeepAlives: true}, // a kept connection may belong to a killed instance
		log:         log,
		stopTimeout: instanceStopTimeout,
		sessions:    map[string]*instance{},
	}
	for n := range count {
		s.all = append(s.all, &instance{number: n + 1, state: instanceStopped})
	}
	return s
}

// List implements httpapi.Instances.
func (s *instances) List(sessionID string) []httpapi.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]httpapi.Instance, 0, len(s.all))
	for _, i := range s.all {
		view := httpapi.Instance{Number: i.number, State: i.state, Serving: s.sessions[sessionID] == i}
		if i.state != instanceStopped {
			view.PID = i.cmd.Process.Pid
		}
		list = append(list, view)
	}
	return list
}

// Metrics implements httpapi.Instances. It leaves out an instance that does not answer.
func (s *instances) Metrics(ctx context.Context) (all []byte) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	for _, host := range s.hosts() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/metrics", http.NoBody)
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

// hosts returns the addresses of the running instances.
func (s *instances) hosts() (hosts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.all {
		if i.state == instanceRunning {
			hosts = append(hosts, i.host)
		}
	}
	return hosts
}

// Start implements httpapi.Instances.
func (s *instances) Start(ctx context.Context, number int) error {
	i, stdout, err := s.launch(number)
	if err != nil || stdout == nil {
		return err
	}
	process, exited := i.cmd.Process, i.exited // i gets others if it is started again
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n') // empty if the process ends before
		ready <- strings.TrimSpace(line)
		err := i.cmd.Wait()
		s.log.InfoContext(ctx, "instance ended", "instance", number, "pid", i.cmd.Process.Pid, "cause", err)
		s.ended(i)
	}()
	starting, cancel := context.WithTimeout(ctx, instanceStartTimeout)
	defer cancel()
	select {
	case host := <-ready:
		if s.setRunning(i, host) {
			return nil
		}
		err = errors.New("the process ended; see its log")
	case <-starting.Done():
		err = starting.Err()
	}
	_ = process.Kill() // fails only if it has ended
	<-exited
	return fault.Unavailable(fmt.Sprintf("Instance %d", number), fmt.Errorf("start instance: %w", err))
}

// launch starts the process of an instance. stdout is nil if it was already started.
func (s *instances) launch(number int) (i *instance, stdout io.Reader, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, err = s.find(number); err != nil || s.closed || i.state != instanceStopped {
		return i, nil, err
	}
	i.cmd = s.command()
	if i.stdin, err = i.cmd.StdinPipe(); err == nil {
		if stdout, err = i.cmd.StdoutPipe(); err == nil {
			err = i.cmd.Start()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("start instance %d: %w", number, err)
	}
	i.state, i.exited = instanceStarting, make(chan struct{})
	return i, stdout, nil
}

// setRunning records that an instance accepts requests at an address. It returns
// false if the instance has ended before.
func (s *instances) setRunning(i *instance, host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if host == "" || i.state != instanceStarting {
		return false
	}
	i.state, i.host = instanceRunning, host
	return true
}

// ended records that the process of an instance has ended.
func (s *instances) ended(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i.state = instanceStopped
	for id, serving := range s.sessions {
		if serving == i {
			delete(s.sessions, id)
		}
	}
	close(i.exited)
}

// Kill implements httpapi.Instances.
func (s *instances) Kill(number int) error {
	s.mu.Lock()
	i, err := s.find(number)
	if err != nil || i.state == instanceStopped {
		s.mu.Unlock()
		return err
	}
	exited := i.exited
	_ = i.cmd.Process.Kill() // fails only if it has ended
	s.mu.Unlock()
	<-exited
	return nil
}

// find returns an instance by number. The caller holds mu.
func (s *instances) find(number int) (*instance, error) {
	if number < 1 || number > len(s.all) {
		return nil, fault.New(fault.NotFound, "There is no instance %d. Use a number from 1 to %d.", number, len(s.all))
	}
	return s.all[number-1], nil
}

// shutDown lets all instances shut down, and kills them after stopTimeout.
// close waits for them.
func (s *instances) shutDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, i := range s.all {
		if i.state != instanceStopped {
			_ = i.stdin.Close()
			time.AfterFunc(s.stopTimeout, func() { _ = s.Kill(i.number) }) // the number is valid
		}
	}
}

// close ends all instances.
func (s *instances) close() {
	s.shutDown()
	for _, i := range s.all {
		if i.exited != nil { // it was started
			<-i.exited
		}
	}
}
