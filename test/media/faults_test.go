package media

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// The process is killed repeatedly during uploads. Readers get complete bodies,
// acknowledged uploads survive, and a start removes unfinished ones.
func TestKilledDuringUploads(t *testing.T) {
	root := t.TempDir()
	const writers, size = 4, 100_000
	var acknowledged [writers]atomic.Int64
	unfinished := 0
	const rounds = 5
	for round := range rounds {
		s := start(t, root, nil)
		for _, file := range s.files(t) {
			if strings.Contains(file, "/.uploads/") {
				t.Errorf("round %d: %s was not removed", round, file)
			}
		}
		for w := range writers {
			last := acknowledged[w].Load()
			if status, text := s.request("GET", fmt.Sprintf("/media/%02d/x.pcm", w), ""); last > 0 && (status != 200 || int64(versionOf(text)) < last) {
				t.Errorf("round %d: version %d was acknowledged, got %d %.30q", round, last, status, text)
			}
		}
		var wg sync.WaitGroup
		var killed atomic.Bool
		var puts atomic.Int64
		for w := range writers {
			path := fmt.Sprintf("/media/%02d/x.pcm", w)
			wg.Go(func() {
				for v := int(acknowledged[w].Load()) + 1; !killed.Load(); v++ {
					if status, _ := s.request("PUT", path, body(v, size)); status/100 == 2 {
						acknowledged[w].Store(int64(v))
						puts.Add(1)
					}
				}
			})
			wg.Go(func() {
				for !killed.Load() {
					if status, text := s.request("GET", path, ""); status == 200 && versionOf(text) < 0 {
						t.Errorf("incomplete body of %d bytes", len(text))
					}
				}
			})
		}
		testkit.Until(t, "more uploads finish", func() bool { return puts.Load() >= int64(3+round) })
		s.startUpload(t, fmt.Sprintf("/media/half/%d.pcm", round), body(round, 1<<20))
		s.kill(t)
		killed.Store(true)
		wg.Wait()
		for _, file := range s.files(t) {
			if strings.Contains(file, "/.uploads/") {
				unfinished++
			} else if versionOf(readFile(t, file)) < 0 {
				t.Errorf("round %d: %s is incomplete", round, file)
			}
		}
	}
	if unfinished < rounds {
		t.Errorf("kills left %d unfinished uploads, want at least %d: one per round", unfinished, rounds)
	}
	client.CloseIdleConnections()
}

// startUpload sends half of an upload and returns once the service has written
// some of it.
func (s *service) startUpload(t *testing.T, path, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testkit.Must(t, testkit.ErrorOf(fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body[:len(body)/2])))
	testkit.Until(t, "a part of the upload is written", func() bool {
		parts, err := filepath.Glob(filepath.Join(s.root, ".uploads", "*", "*"))
		return err == nil && slices.ContainsFunc(parts, func(name string) bool {
			info, err := os.Stat(name)
			return err == nil && info.Size() >= int64(len(body)/4)
		})
	})
}

func TestFullDisk(t *testing.T) {
	s := start(t, testkit.SmallDisk(t, "size=1m"), nil)
	stored := 0
	for ; stored < 20; stored++ {
		if status, text := s.request("PUT", fmt.Sprintf("/media/ab/%d.pcm", stored), body(stored, 100_000)); status != 201 {
			if status != 507 || !strings.Contains(text, "INSUFFICIENT_STORAGE") {
				t.Errorf("full disk: %d %s, want 507 INSUFFICIENT_STORAGE", status, text)
			}
			break
		}
	}
	if stored < 5 || stored > 10 {
		t.Fatalf("%d blobs of 100 KB fit on a disk of 1 MiB, want 5 to 10", stored)
	}
	s.want(t, "PUT", "/media/cd/new.pcm", body(1, 500_000), 507, "INSUFFICIENT_STORAGE")
	s.want(t, "PUT", "/media/ab/0.pcm", body(99, 900_000), 507, "INSUFFICIENT_STORAGE")
	if files := s.files(t); len(files) != stored {
		t.Errorf("files %v, want the %d stored blobs", files, stored)
	}
	s.want(t, "GET", "/media/ab/0.pcm", "", 200, body(0, 100_000)) // not replaced
	s.want(t, "DELETE", "/media/ab/0.pcm", "", 204, "")
	s.want(t, "PUT", "/media/ab/new.pcm", body(1, 50_000), 201, "")
	s.want(t, "GET", "/media/ab/new.pcm", "", 200, body(1, 50_000))

	t.Run("size limit keeps space free", func(t *testing.T) {
		s := start(t, testkit.SmallDisk(t, "size=1m"), harness.Env{"MEDIA_MAX_BYTES": "500000"})
		for i := range 30 {
			s.want(t, "PUT", fmt.Sprintf("/media/ab/%d.pcm", i), body(i, 100_000), 201, "")
		}
		s.want(t, "GET", "/media/ab/29.pcm", "", 200, body(29, 100_000))
		s.want(t, "GET", "/media/ab/0.pcm", "", 404, "NOT_FOUND")
		s.want(t, "PUT", "/media/ab/big.pcm", body(1, 600_000), 413, "500000")
	})
	t.Run("no free inodes", func(t *testing.T) {
		s := start(t, testkit.SmallDisk(t, "size=1m,nr_inodes=9"), nil)
		s.want(t, "PUT", "/media/ab/0.pcm", "first", 201, "")
		s.want(t, "PUT", "/media/ab/1.pcm", "second", 507, "INSUFFICIENT_STORAGE")
		s.want(t, "PUT", "/media/cd/1.pcm", "second", 507, "INSUFFICIENT_STORAGE")
		s.want(t, "GET", "/media/ab/0.pcm", "", 200, "first")
	})
}

// If the sync of a file, of its shard or of the root fails, the upload fails and
// leaves nothing that a crash could lose. A deletion that a crash could undo fails
// too.
func TestFailedSync(t *testing.T) {
	for _, tt := range []struct {
		name, error  string
		path         string // below the root; "": every sync fails
		replaced     int    // status of a PUT to an existing blob
		stored       string // in the response to a GET of that blob
		newInShard   int    // status of a PUT of a new blob to an existing directory
		newWithShard int    // status of a PUT of a new blob to a new directory
		deleted      int    // status of a DELETE
		env          harness.Env
	}{
		{"the file", "ENOSPC", "", 507, "first", 507, 507, 500, nil},
		{"over quota", "EDQUOT", "", 507, "first", 507, 507, 500, nil},
		{"a broken disk", "EIO", "", 500, "first", 500, 500, 500, nil},
		{"the shard", "ENOSPC", "ab", 507, "NOT_FOUND", 507, 201, 500, nil}, // either version may survive a crash
		{"the root", "ENOSPC", ".", 204, "second", 201, 507, 204, nil},
		{"unsynced", "EIO", "", 204, "second", 201, 201, 204, harness.Env{"MEDIA_SYNC": "false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, t.TempDir(), tt.env)
			s.want(t, "PUT", "/media/ab/x.pcm", "first", 201, "")
			s.want(t, "GET", "/media/ab/x.pcm", "", 200, "first") // loads it into the cache
			s.want(t, "PUT", "/media/ab/old.pcm", "old", 201, "")
			path := ""
			if tt.path != "" {
				path = filepath.Join(s.root, tt.path)
			}
			restore := testkit.FailCalls(t, s.Cmd.Process.Pid, "fsync", tt.error, path)
			for path, status := range map[string]int{"/media/ab/x.pcm": tt.replaced, "/media/ab/y.pcm": tt.newInShard, "/media/cd/z.pcm": tt.newWithShard} {
				before := len(s.files(t))
				s.want(t, "PUT", path, "second", status, "")
				if status >= 500 && len(s.files(t)) > before {
					t.Errorf("%s: the failed upload left a file: %v", path, s.files(t))
				}
			}
			s.want(t, "DELETE", "/media/ab/old.pcm", "", tt.deleted, "")
			restore()
			s.want(t, "GET", "/media/ab/old.pcm", "", 404, "")
			_, text := s.request("GET", "/media/ab/x.pcm", "")
			testkit.Contains(t, "stored", text, tt.stored)
			s.want(t, "PUT", "/media/ef/x.pcm", "healed", 201, "")
		})
	}
	client.CloseIdleConnections()
}

// Some file systems don't support RENAME_NOREPLACE.
func TestFailedRename(t *testing.T) {
	for _, tt := range []struct {
		name, calls, error string
		created, replaced  int    // statuses of PUTs to a new and to an existing blob
		stored             string // content of the existing blob afterwards
		objects            int    // number of blobs afterwards
	}{
		{"RENAME_NOREPLACE not supported", "renameat2", "EINVAL", 201, 204, "second", 2},
		{"full directory", "renameat,renameat2", "ENOSPC", 507, 507, "first", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, t.TempDir(), nil)
			testkit.Must(t, os.MkdirAll(filepath.Join(s.root, "ab", "folder.pcm"), 0o750))
			s.want(t, "PUT", "/media/ab/x.pcm", "first", 201, "")
			s.want(t, "GET", "/media/ab/x.pcm", "", 200, "first") // loads it into the cache
			restore := testkit.FailCalls(t, s.Cmd.Process.Pid, tt.calls, tt.error, "")
			s.want(t, "PUT", "/media/ab/y.pcm", "second", tt.created, "")
			s.want(t, "PUT", "/media/ab/x.pcm", "second", tt.replaced, "")
			s.want(t, "PUT", "/media/ab/folder.pcm", "second", 409, "PATH_OCCUPIED")
			restore()
			s.want(t, "GET", "/media/ab/x.pcm", "", 200, tt.stored)
			s.want(t, "GET", "/metrics", "", 200, fmt.Sprintf("\ntelapi_media_store_objects %d\n", tt.objects))
			if files := s.files(t); len(files) != tt.objects {
				t.Errorf("files %v, want %d", files, tt.objects)
			}
		})
	}
	client.CloseIdleConnections()
}

func TestStartErrors(t *testing.T) {
	s := start(t, t.TempDir(), nil)
	port := s.url[strings.LastIndex(s.url, ":")+1:]
	missing := filepath.Join(t.TempDir(), "none.pem")
	for name, tt := range map[string]struct {
		env  harness.Env
		want string // in stderr
	}{
		"port in use":             {harness.Env{"MEDIA_PORT": port}, "MEDIA_PORT"},
		"root in use":             {harness.Env{"MEDIA_ROOT": s.root}, "MEDIA_ROOT"},
		"root is a file":          {harness.Env{"MEDIA_ROOT": filepath.Join(s.root, ".lock")}, "media root"},
		"certificate without key": {harness.Env{"MEDIA_TLS_CERT_FILE": missing}, "MEDIA_TLS_KEY_FILE"},
		"missing certificate":     {harness.Env{"MEDIA_TLS_CERT_FILE": missing, "MEDIA_TLS_KEY_FILE": missing}, "MEDIA_TLS_CERT_FILE"},
		"public without a token":  {harness.Env{"MEDIA_HOST": "0.0.0.0"}, "remove MEDIA_HOST"},
		"only the previous token": {harness.Env{"MEDIA_UPLOAD_TOKEN_PREVIOUS": "secret-of-old"}, "MEDIA_UPLOAD_TOKEN"},
	} {
		env := harness.Merge(harness.Env{"MEDIA_PORT": "0", "MEDIA_HOST": "127.0.0.1", "MEDIA_ROOT": t.TempDir()}, tt.env)
		p := harness.StartProcess(t, env, "media")
		if code := p.WaitExit(t); code != 1 || !p.Stderr.Has(tt.want) {
			t.Errorf("%s: exit code %d, stderr %s, want 1 and %s", name, code, p.Stderr, tt.want)
		}
		if p.Stderr.Has("secret-of-old") {
			t.Errorf("%s: stderr contains the token: %s", name, p.Stderr)
		}
	}
}

func TestServiceWithoutTokenListensOnLoopback(t *testing.T) {
	s := start(t, t.TempDir(), harness.Env{"MEDIA_HOST": ""})
	if !strings.HasPrefix(s.url, "http://127.0.0.1:") || !s.Stderr.Has("MEDIA_UPLOAD_TOKEN is not set") {
		t.Errorf("URL %s, stderr %s; want 127.0.0.1 and a warning", s.url, s.Stderr)
	}
	s.want(t, "PUT", "/media/ab/x.pcm", "x", http.StatusCreated, "")
}

// After SIGTERM /health returns 503, an active upload, with the previous token, finishes, and
// the process exits.
func TestSIGTERMDrains(t *testing.T) {
	s := start(t, t.TempDir(), harness.Env{"DRAIN_DELAY": "300ms", "MEDIA_UPLOAD_TOKEN": "new", "MEDIA_UPLOAD_TOKEN_PREVIOUS": "old"})
	s.want(t, "PUT", "/media/ab/y.pcm", "x", http.StatusUnauthorized, "")
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	testkit.Must(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer old\r\nContent-Length: 6\r\n\r\nsec")
	testkit.Until(t, "the upload has started", func() bool { return len(s.files(t)) == 1 })
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	testkit.Until(t, "/health returns 503 or the port is closed", func() bool {
		status, _ := s.request("GET", "/health", "")
		return status == 503 || status == 0
	})
	fmt.Fprint(conn, "ond")
	response, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 201") {
		t.Errorf("response to the active upload is %q (%v), want 201", response, err)
	}
	testkit.Equal(t, "exit code", s.WaitExit(t), 0)
	testkit.Equal(t, "stored", readFile(t, filepath.Join(s.root, "ab/x.pcm")), "second")
}
