package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func startEmbedded(t *testing.T, dir string) (*Embedded, *testkit.Buffer) {
	t.Helper()
	logs := &testkit.Buffer{}
	e, err := StartEmbedded(EmbeddedOptions{DataDir: dir}, logs.Logger())
	testkit.Must(t, err)
	t.Cleanup(e.Close)
	return e, logs
}

func TestJoinRunningEngine(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	e, logs := startEmbedded(t, dir)
	file := filepath.Join(dir, kv.EmbeddedFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("connection file: %v, %v, want mode 0600", info, err)
	}
	if logs.Count("a crash can lose its last seconds") != 1 || strings.Contains(logs.String(), e.password.Reveal()) {
		t.Errorf("logged:\n%s\nwant one warning without the password", logs)
	}

	opts, err := Join(dir)
	testkit.Must(t, err)
	server, _ := connect(t, e.Options(nil))
	cli, _ := connect(t, opts)
	testkit.Must(t, testkit.ErrorOf(cli.SaveLimits(t.Context(), nil, []byte("{}"))))
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
	testkit.WantError(t, "join a closed engine", testkit.ErrorOf(Join(dir)), ErrNoServer)
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
	testkit.Equal(t, "servers run on one data directory", running, 1)
}

func TestStaleRecordIsDetected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, kv.EmbeddedFile)
	first, _ := startEmbedded(t, dir)
	record, err := os.ReadFile(file)
	testkit.Must(t, err)
	first.Close()
	if err := os.WriteFile(file, record, 0o600); err != nil { // as after a crash
		t.Fatal(err)
	}
	if _, err := Join(dir); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "left behind by process") {
		t.Errorf("join a stopped server: %v", err)
	}
	startEmbedded(t, dir)
	testkit.NoError(t, "join the next server", testkit.ErrorOf(Join(dir)))
	testkit.Must(t, os.WriteFile(file, []byte("{nonsense"), 0o600))
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
	e.addr, e.record = other.addr, filepath.Join(ours, kv.EmbeddedFile)
	testkit.Must(t, e.writeRecord())
	testkit.WantError(t, "join with another server on the port", testkit.ErrorOf(Join(ours)), ErrNoServer)
}

// If the server hangs, revoking a key must not report that no server is running.
func TestHangingServerIsNotReportedAsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, _ := startEmbedded(t, dir)
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // connections wait to be accepted
	testkit.Must(t, err)
	defer hanging.Close()
	e.addr = hanging.Addr().String()
	testkit.Must(t, e.writeRecord())
	opts, err := Join(dir)
	testkit.Must(t, err)
	opts.Logger, opts.ConnectTimeout = slog.New(slog.DiscardHandler), time.Second
	s := Open(opts)
	defer s.Close()
	testkit.WantFault(t, "announce", s.Announce(t.Context(), "key:k1"), fault.ServiceUnavailable)
}

func TestEmbeddedKeysExpireInRealTime(t *testing.T) {
	t.Parallel()
	e, _ := startEmbedded(t, t.TempDir())
	s, _ := connect(t, e.Options(nil))
	start := time.Now()
	lease := func() int64 {
		g, err := s.Grant(t.Context(), "k", 1, 1, time.Second)
		testkit.Must(t, err)
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

// saved starts an engine on a new directory, stores the limits, stops it and returns
// the path of the snapshot.
func saved(t *testing.T) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	e, _ := startEmbedded(t, dir)
	s, _ := connect(t, e.Options(nil))
	testkit.Must(t, testkit.ErrorOf(s.SaveLimits(t.Context(), nil, []byte("{}"))))
	s.Close()
	e.Close()
	return dir, filepath.Join(dir, snapshotFile)
}

// hasLimits reports whether an engine has the content of saved.
func hasLimits(t *testing.T, e *Embedded) bool {
	t.Helper()
	s, _ := connect(t, e.Options(nil))
	_, found, err := s.Limits(t.Context())
	testkit.Must(t, err)
	return found
}

func TestContentSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir, path := saved(t)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("snapshot: %v, %v, want mode 0600", info, err)
	}
	e, logs := startEmbedded(t, dir)
	if !hasLimits(t, e) || logs.Count("restored the embedded key-value store") != 1 || logs.Count("did not stop normally") != 0 {
		t.Errorf("the content was not restored:\n%s", logs)
	}
}

// A snapshot of a running engine is loaded with a warning, even if nothing was stored
// between the start and the crash.
func TestCrashIsReported(t *testing.T) {
	t.Parallel()
	dir, path := saved(t)
	e, _ := startEmbedded(t, dir)
	running, err := os.ReadFile(path)
	testkit.Must(t, err)
	e.Close()
	if err := os.WriteFile(path, running, 0o600); err != nil { // as if it had crashed
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte("half a snap"), 0o600); err != nil { // while it wrote the next one
		t.Fatal(err)
	}
	e, logs := startEmbedded(t, dir)
	if !hasLimits(t, e) || logs.Count("did not stop normally") != 1 {
		t.Errorf("want the content and a warning:\n%s", logs)
	}
}

func TestSnapshotsAreWrittenRegularly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, _ := startEmbedded(t, dir)
	s, _ := connect(t, e.Options(nil))
	path := filepath.Join(dir, snapshotFile)
	testkit.Must(t, testkit.ErrorOf(s.SaveLimits(t.Context(), nil, []byte(`{"not":"real"}`))))
	testkit.Until(t, "a snapshot with the limits", func() bool {
		content, err := os.ReadFile(path)
		return err == nil && bytes.Contains(content, []byte(`{"not":"real"}`))
	})
}

func TestUnchangedContentIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	e, c := newTestEngine(t)
	logs := &testkit.Buffer{}
	s := &snapshots{engine: e, path: filepath.Join(t.TempDir(), snapshotFile), log: logs.Logger()}
	c.do("SET", "k", "v")
	c.do("PEXPIRE", "k", "3600000")
	c.do("XADD", "s", "*", "f", "v")
	e.tick()
	s.save(false)
	testkit.Must(t, os.Remove(s.path))
	for range 3 {
		e.tick()
		s.save(false)
	}
	if _, err := os.Stat(s.path); err == nil {
		t.Error("an unchanged snapshot was written")
	}
	s.save(true)
	if header, _, err := readSnapshot(s.path); err != nil || !header.Stopped {
		t.Errorf("snapshot of the stopped engine: %+v, %v", header, err)
	}
	path := s.path
	s.path = filepath.Join(path, "not a directory")
	s.save(true)
	c.do("SET", "k", "v2")
	s.save(false)
	s.path = path
	s.save(false)
	if logs.Count("cannot write the snapshot") != 1 || logs.Count("written again") != 1 {
		t.Errorf("logged:\n%s\nwant one error and one message", logs)
	}
}

func TestUnreadableSnapshotIsRenamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damage func([]byte) []byte
		want   string
	}{
		"empty":            {func([]byte) []byte { return nil }, "it is damaged"},
		"truncated":        {func(b []byte) []byte { return b[:len(b)-1] }, "1 bytes are missing"},
		"flipped bit":      {func(b []byte) []byte { b[len(b)-2] ^= 1; return b }, "its checksum is wrong"},
		"newer version":    {func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1) }, "a newer version of telapi wrote it"},
		"other file":       {func([]byte) []byte { return []byte("REDIS0011\nxyz") }, "its first line is not a header"},
		"no header fields": {func([]byte) []byte { return []byte("{}\n") }, "it is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, path := saved(t)
			content, err := os.ReadFile(path)
			testkit.Must(t, err)
			damaged := test.damage(bytes.Clone(content))
			testkit.Must(t, os.WriteFile(path, damaged, 0o600))
			e, logs := startEmbedded(t, dir)
			if hasLimits(t, e) || logs.Count("the store starts empty") != 1 || logs.Count(test.want) != 1 {
				t.Errorf("logged:\n%s\nwant an empty store and %q", logs, test.want)
			}
			kept, _ := filepath.Glob(path + ".unreadable-*")
			if len(kept) != 1 {
				t.Fatalf("renamed files: %v, want one", kept)
			}
			if left, _ := os.ReadFile(kept[0]); !bytes.Equal(left, damaged) || !strings.Contains(logs.String(), kept[0]) {
				t.Errorf("%s has other content, or is not logged", kept[0])
			}
			e.Close()
			_, logs = startEmbedded(t, dir)
			if logs.Count("restored the embedded key-value store") != 1 {
				t.Errorf("the next start logged:\n%s", logs)
			}
		})
	}
}

// The engine returns all fields of a hash, however few a script asks for.
func TestForgettingReadsLongChannelsRarely(t *testing.T) {
	t.Parallel()
	e, logs := startEmbedded(t, t.TempDir())
	var scans atomic.Int64
	e.engine.server.SetPreHook(func(c *server.Peer, command string, args ...string) bool {
		if command == "HSCAN" {
			scans.Add(1)
		}
		return e.engine.memory.hook(c, command, args...)
	})
	s := newChannelFixture(t, e.Options(logs.Logger()), nil)
	s.attach("a")
	const frames, most = 1024, 24
	for n := range frames {
		s.expectFrame("a", fmt.Sprint(n), channel.Appended)
	}
	if n := scans.Load(); n == 0 || n > most {
		t.Errorf("all fields were read %d times with %d frames, want 1 to %d times", n, frames, most)
	}
}
