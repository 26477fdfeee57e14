package redisstore

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/redisconn"
	"telapi/test/testkit"
)

func startEmbedded(t *testing.T, dir string) (*Embedded, *testkit.Buffer) {
	t.Helper()
	logs := &testkit.Buffer{}
	e, err := StartEmbedded(EmbeddedOptions{DataDir: dir}, logs.Logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, logs
}

func TestJoinRunningEngine(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	e, logs := startEmbedded(t, dir)
	file := filepath.Join(dir, redisconn.EmbeddedFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("connection file: %v, %v, want mode 0600", info, err)
	}
	if logs.Count("a crash can lose its last seconds") != 1 || strings.Contains(logs.String(), e.pass.Reveal()) {
		t.Errorf("logged:\n%s\nwant one warning without the password", logs)
	}

	opts, err := Join(dir)
	if err != nil {
		t.Fatal(err)
	}
	server, _ := connect(t, e.Options(nil))
	cli, _ := connect(t, opts)
	if _, err := cli.SaveLimits(t.Context(), nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if value, ok, err := server.Limits(t.Context()); !ok || err != nil {
		t.Errorf("limits read by the server: %q, found %t, %v, want true", value, ok, err)
	}
	if _, err := StartEmbedded(EmbeddedOptions{DataDir: dir}, logs.Logger()); err == nil || !strings.Contains(err.Error(), "another server is running on "+dir+": stop it") {
		t.Errorf("start a second engine: %v", err)
	}

	e.Close()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 || filepath.Base(left[0]) != engineLock || filepath.Base(left[1]) != snapshotFile {
		t.Errorf("files after Close: %v, want only %s and %s", left, engineLock, snapshotFile)
	}
	if _, err := Join(dir); !errors.Is(err, ErrNoServer) {
		t.Errorf("join a closed engine: %v", err)
	}
}

func TestOneOfConcurrentServersStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var started sync.WaitGroup
	var engines [8]*Embedded
	for i := range engines {
		started.Go(func() { engines[i], _ = StartEmbedded(EmbeddedOptions{DataDir: dir}, slog.New(slog.DiscardHandler)) })
	}
	started.Wait()
	running := 0
	for _, e := range engines {
		if e != nil {
			running++
			defer e.Close()
		}
	}
	if running != 1 {
		t.Errorf("%d servers run on one data directory, want 1", running)
	}
}

func TestStaleRecordIsDetected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, redisconn.EmbeddedFile)
	first, _ := startEmbedded(t, dir)
	record, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if err := os.WriteFile(file, record, 0o600); err != nil { // as after a crash
		t.Fatal(err)
	}
	if _, err := Join(dir); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "left behind by process") {
		t.Errorf("join a stopped server: %v", err)
	}
	startEmbedded(t, dir)
	if _, err := Join(dir); err != nil {
		t.Errorf("join the next server: %v", err)
	}
	if err := os.WriteFile(file, []byte("{nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(dir); err == nil || errors.Is(err, ErrNoServer) {
		t.Errorf("join with a damaged file: %v", err)
	}
}

// Another program, even Redis, may listen on the port of a stopped server.
func TestJoinRejectsOtherServerOnPort(t *testing.T) {
	t.Parallel()
	ours, theirs := t.TempDir(), t.TempDir()
	e, _ := startEmbedded(t, ours)
	other, _ := startEmbedded(t, theirs)
	e.Close()
	e.addr, e.file = other.addr, filepath.Join(ours, redisconn.EmbeddedFile)
	if err := e.record(); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(ours); !errors.Is(err, ErrNoServer) {
		t.Errorf("join with another server on the port: %v", err)
	}
}

// If the server hangs, revoking a key must not report that no server is running.
func TestHangingServerIsNotReportedAsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, _ := startEmbedded(t, dir)
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // connections wait to be accepted
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	e.addr = hanging.Addr().String()
	if err := e.record(); err != nil {
		t.Fatal(err)
	}
	opts, err := Join(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts.Logger, opts.ConnectTimeout = slog.New(slog.DiscardHandler), time.Second
	s := Open(opts)
	defer s.Close()
	if err := s.Announce(t.Context(), "key:k1"); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("announce: %v", err)
	}
}

func TestEmbeddedKeysExpireInRealTime(t *testing.T) {
	t.Parallel()
	e, _ := startEmbedded(t, t.TempDir())
	s, _ := connect(t, e.Options(nil))
	start := time.Now()
	lease := func() int64 {
		g, err := s.Lease(t.Context(), "k", 1, 1, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return g.Permits
	}
	if lease() != 1 {
		t.Fatal("rejected in a new window")
	}
	testkit.Until(t, "a new window", func() bool { return lease() == 1 })
	if passed := time.Since(start); passed < time.Second-2*engineTick {
		t.Errorf("a window ended after %v, want 1s", passed)
	}
}
