package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/media"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

func TestProviderTimeoutLeavesTimeForOthers(t *testing.T) {
	for _, others := range []int{0, 1, 2} {
		cfg := config.Config{SpeechProviders: append([]string{"openai"}, []string{"tone", "tone"}[:others]...), SpeechTimeout: 10 * time.Minute}
		providers, err := speechProviders(t.Context(), cfg)
		if err != nil || len(providers) != others+1 {
			t.Fatalf("got %d providers and error %v, want %d", len(providers), err, others+1)
		}
		testkit.Equal(t, fmt.Sprintf("timeout before %d other providers", others), providers[0].(*media.OpenAI).Timeout, speech.ProviderTimeout(10*time.Minute, others+1))
	}
}

// openSockets returns the number of sockets of this process.
func openSockets(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("list open files in /proc/self/fd: %v", err)
	}
	for _, file := range files {
		if target, _ := os.Readlink(file); strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

func TestDemoClosesBotIfRuntimeFails(t *testing.T) {
	listener, err := listenTCP(t.Context(), "127.0.0.1", 0, "TELAPI")
	testkit.Must(t, err)
	defer listener.Close()
	a := &App{process: process{log: slog.New(slog.DiscardHandler), listener: listener}, demo: &demoState{Demo: &Demo{Bot: &Bot{}}, events: demo.NewHub()}}
	before := openSockets(t)
	if _, err := a.openRuntimeAndBot(demo.Resources{}); err == nil || !strings.Contains(err.Error(), "start demo runtime") {
		t.Fatalf("without a key: error %v, want \"start demo runtime\"", err)
	}
	testkit.Until(t, "the bot's port is closed", func() bool { return openSockets(t) <= before })
}

// running returns instances with the given addresses that count as running.
func running(hosts ...string) *instances {
	s := newInstances(context.Background(), len(hosts), nil, slog.New(slog.DiscardHandler))
	for n, host := range hosts {
		s.all[n] = &instance{number: n + 1, host: host}
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
	testkit.Must(t, err)
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
		s := newInstances(t.Context(), 1, func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, command[0], command[1:]...) }, slog.New(slog.DiscardHandler))
		if err := s.Start(t.Context(), 1); err == nil {
			t.Errorf("%s: started, want an error", name)
		}
		testkit.WantError(t, name, testkit.ErrorOf(s.post(t, "")), errNoInstance)
		s.close()
		if list := s.List(""); list[0].State != "stopped" {
			t.Errorf("%s: the instance is %s, want stopped", name, list[0].State)
		}
	}
}

func TestInstancesThatDoNotShutDownAreKilled(t *testing.T) {
	command := func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo 127.0.0.1:1; exec sleep 3600")
	}
	s := newInstances(t.Context(), 3, command, slog.New(slog.DiscardHandler))
	s.stopTimeout = time.Millisecond
	for number := range 3 {
		testkit.Must(t, s.Start(t.Context(), number+1))
	}
	s.close()
	for _, i := range s.List("") {
		testkit.Equal(t, fmt.Sprintf("instance %d", i.Number), i.State, "stopped")
	}
}

// startListener returns a listener that has accepted a connection, and a function that
// opens another one.
func startListener(t *testing.T) (l net.Listener, dial func() net.Conn) {
	l, err := listenAPI(t.Context(), config.Config{Host: "127.0.0.1"})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	dial = func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	if conn, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	return l, dial
}

func TestConnectionsOpenedBeforeCloseAreAccepted(t *testing.T) {
	l, dial := startListener(t)
	const waiting = 20
	for range waiting {
		testkit.Must(t, testkit.ErrorOf(dial().Write([]byte("x"))))
	}
	testkit.Must(t, l.Close())
	for i := range waiting {
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		testkit.NoError(t, fmt.Sprintf("connection %d", i), testkit.ErrorOf(conn.Read(make([]byte, 1))))
		testkit.Must(t, conn.Close())
	}
	testkit.WantError(t, "Accept", testkit.ErrorOf(l.Accept()), net.ErrClosed)
	if dial() != nil {
		t.Error("the port is still open")
	}
}

func TestCloseWakesAccept(t *testing.T) {
	l, _ := startListener(t)
	accepted := make(chan error)
	go func() { _, err := l.Accept(); accepted <- err }()
	testkit.Must(t, l.Close())
	testkit.WantError(t, "Accept", <-accepted, net.ErrClosed)
	testkit.NoError(t, "second Close", l.Close())
}

func TestNewConnectionsDoNotKeepListenerOpen(t *testing.T) {
	l, dial := startListener(t)
	testkit.Must(t, l.Close())
	rejected := make(chan struct{})
	go func() {
		defer close(rejected)
		for dial() != nil { // until the port is closed
		}
	}()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		testkit.Must(t, err)
		_ = conn.Close()
	}
	<-rejected
}

func TestListenerIsClosedAfterTimeout(t *testing.T) {
	l, dial := startListener(t)
	before := time.Now().Add(-2 * acceptTimeout)
	l.(*listener).closed.Store(&before)
	dial()
	testkit.WantError(t, "Accept", testkit.ErrorOf(l.Accept()), net.ErrClosed)
}

func TestUnusedListenerIsClosedAtOnce(t *testing.T) {
	l, err := listenAPI(t.Context(), config.Config{Host: "127.0.0.1"})
	testkit.Must(t, err)
	testkit.Must(t, l.Close())
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the port is still open")
	}
}

func TestIdleProcessReleasesMemory(t *testing.T) {
	const garbage = 64 << 20
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	defer func() { stop(); <-done }()

	var stats runtime.MemStats
	block := make([]byte, garbage)
	for i := range block {
		block[i] = 1 // makes the operating system allocate the page
	}
	runtime.ReadMemStats(&stats)
	before := stats.HeapReleased
	runtime.KeepAlive(block)
	go func() { releaseMemory(ctx, 300*time.Millisecond); close(done) }()
	testkit.Until(t, "half of the block is released", func() bool {
		runtime.ReadMemStats(&stats)
		return stats.HeapReleased >= before+garbage/2
	})
}

// gcPercent returns how far the heap may grow before garbage is collected.
func gcPercent() uint64 {
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return percent[0].Value.Uint64()
}

func TestMediaServiceLimitsGarbage(t *testing.T) {
	for _, tt := range []struct {
		memory      string
		gogc        int
		want, after uint64
	}{
		{"0", 100, 100, 100},
		{"67108864", 100, 100, 100},
		{"134217728", 100, 75, 100},
		{"1073741824", 100, 31, 100},
		{"1073741824", 50, 50, 50}, // an operator has set GOGC
	} {
		defer debug.SetGCPercent(debug.SetGCPercent(tt.gogc))
		cfg, _, err := config.Load([]string{"MEDIA_MEMORY_BYTES=" + tt.memory, "MEDIA_HOST=127.0.0.1", "MEDIA_PORT=0", "DATA_DIR=" + t.TempDir()}, config.Tool)
		testkit.Must(t, err)
		m, err := NewMedia(t.Context(), cfg, Options{Log: io.Discard})
		testkit.Must(t, err)
		got := gcPercent()
		m.close()
		if after := gcPercent(); got != tt.want || after != tt.after {
			t.Errorf("MEDIA_MEMORY_BYTES=%s GOGC=%d: garbage collected at %d %%, and at %d %% after the service, want %d %% and %d %%", tt.memory, tt.gogc, got, after, tt.want, tt.after)
		}
	}
}
