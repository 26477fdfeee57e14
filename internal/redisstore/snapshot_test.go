package redisstore

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// saved starts an engine on a new directory, stores the limits, stops it and returns
// the path of the snapshot.
func saved(t *testing.T) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	e, _ := startEmbedded(t, dir)
	s, _ := connect(t, e.Options(nil))
	if _, err := s.SaveLimits(t.Context(), nil, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	e.Close()
	return dir, filepath.Join(dir, snapshotFile)
}

// hasLimits reports whether an engine has the content of saved.
func hasLimits(t *testing.T, e *Embedded) bool {
	t.Helper()
	s, _ := connect(t, e.Options(nil))
	_, found, err := s.Limits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := s.SaveLimits(t.Context(), nil, []byte(`{"not":"real"}`)); err != nil {
		t.Fatal(err)
	}
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
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
			damaged := test.damage(bytes.Clone(content))
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
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
