package app

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// running returns instances with the given addresses that count as running.
func running(hosts ...string) *instances {
	s := newInstances(len(hosts), nil, slog.New(slog.DiscardHandler))
	for n, host := range hosts {
		s.all[n].state, s.all[n].host = instanceRunning, host
	}
	return s
}

func (s *instances) post(t *testing.T, body string) (response string, failure error) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://public.example/api/v1/endpoints", strings.NewReader(body))
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	s.Forward(w, r, "", func(err error) { failure = err })
	return w.Body.String(), failure
}

func TestRequestGoesToOtherInstanceIfOneDoesNotAccept(t *testing.T) {
	live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Host+" "+r.Header.Get("X-Forwarded-For")+" "+string(body))
	}))
	defer live.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	s := running(closed.Addr().String(), live.Listener.Addr().String())
	for range 4 {
		if got, err := s.post(t, "the body"); got != "public.example 192.0.2.7 the body" || err != nil {
			t.Errorf("got %q, %v, want host, client address and body from the running instance", got, err)
		}
	}
}

// The instance may have handled the request.
func TestRequestIsNotRepeatedIfInstanceEnds(t *testing.T) {
	var requests atomic.Int64
	ending := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		requests.Add(1)
		panic(http.ErrAbortHandler)
	}))
	defer ending.Close()
	host := ending.Listener.Addr().String()
	if got, err := running(host, host).post(t, "the body"); err == nil || requests.Load() != 1 {
		t.Errorf("got %q, %v after %d requests, want an error after one", got, err, requests.Load())
	}
}

func TestInstanceThatDoesNotStart(t *testing.T) {
	for name, command := range map[string][]string{
		"missing program": {"/nonexistent"},
		"ends at once":    {"false"},
		"prints nothing":  {"sh", "-c", "exec 1>&-; exec cat"},
	} {
		s := newInstances(1, func() *exec.Cmd { return exec.CommandContext(t.Context(), command[0], command[1:]...) }, slog.New(slog.DiscardHandler))
		if err := s.Start(t.Context(), 1); err == nil {
			t.Errorf("%s: started, want an error", name)
		}
		if _, err := s.post(t, ""); !errors.Is(err, errNoInstance) {
			t.Errorf("%s: got %v, want %v", name, err, errNoInstance)
		}
		s.close()
		if list := s.List(""); list[0].State != instanceStopped {
			t.Errorf("%s: the instance is %s, want stopped", name, list[0].State)
		}
	}
}

func TestInstancesThatDoNotShutDownAreKilled(t *testing.T) {
	s := newInstances(3, func() *exec.Cmd {
		return exec.CommandContext(t.Context(), "sh", "-c", "echo 127.0.0.1:1; exec sleep 3600")
	}, slog.New(slog.DiscardHandler))
	s.stopTimeout = time.Millisecond
	for number := range 3 {
		if err := s.Start(t.Context(), number+1); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	for _, i := range s.List("") {
		if i.State != instanceStopped {
			t.Errorf("instance %d is %s after close, want stopped", i.Number, i.State)
		}
	}
}

func TestRequestFailsIfNoInstanceIsRunning(t *testing.T) {
	if got, err := newInstances(2, nil, slog.New(slog.DiscardHandler)).post(t, ""); !errors.Is(err, errNoInstance) {
		t.Errorf("got %q, %v, want %v", got, err, errNoInstance)
	}
}
