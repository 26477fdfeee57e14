package media_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/media"
	"telapi/test/testkit"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o644) }

func openStore(t *testing.T, root string, maxBytes int64) *media.Store {
	t.Helper()
	withoutCache := func(_ media.Path, step func() error) error { return step() }
	s, err := media.OpenStore(media.Options{Root: root, MaxBytes: maxBytes, Log: slog.New(slog.DiscardHandler)}, withoutCache)
	testkit.Must(t, err)
	return s
}

func put(t *testing.T, s *media.Store, path, body string) (created bool) {
	t.Helper()
	created, err := s.Put(media.Path(path), strings.NewReader(body), int64(len(body)), nil)
	if err != nil {
		t.Fatalf("put %s: %v", path, err)
	}
	return created
}

// use opens a blob, so that it is the most recently used.
func use(t *testing.T, s *media.Store, path string) {
	t.Helper()
	b, err := s.Open(media.Path(path))
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	b.Close()
}

// stored returns the paths of all blobs.
func stored(t *testing.T, s *media.Store) (paths []string) {
	t.Helper()
	list, err := s.List("", 10_000)
	testkit.Must(t, err)
	for _, b := range list {
		paths = append(paths, b.Path)
	}
	return paths
}

func TestLeastRecentlyUsedIsEvictedAfterRestart(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 50)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		put(t, s, name+name+"/x.pcm", strings.Repeat(name, 10))
	}
	use(t, s, "aa/x.pcm")
	put(t, s, "ff/x.pcm", strings.Repeat("f", 10))
	if got, want := stored(t, s), []string{"aa/x.pcm", "cc/x.pcm", "dd/x.pcm", "ee/x.pcm", "ff/x.pcm"}; !slices.Equal(got, want) {
		t.Fatalf("stored %v, want %v", got, want)
	}
	use(t, s, "cc/x.pcm")
	s.Close()

	s = openStore(t, root, 50)
	put(t, s, "gg/x.pcm", strings.Repeat("g", 20)) // evicts two
	testkit.Equal(t, "stored", stored(t, s), []string{"aa/x.pcm", "cc/x.pcm", "ff/x.pcm", "gg/x.pcm"})
	put(t, s, "gg/x.pcm", "small") // a smaller replacement frees space
	put(t, s, "hh/x.pcm", strings.Repeat("h", 10))
	if got := stored(t, s); len(got) != 5 {
		t.Errorf("stored %v, want 5 blobs", got)
	}
	s.Close()

	s = openStore(t, root, 15) // a lower limit applies from the start
	defer s.Close()
	testkit.Equal(t, "stored", stored(t, s), []string{"gg/x.pcm", "hh/x.pcm"})
}

// Responses from memory don't open the file, but count as use.
func TestResponsesFromMemoryCountAsUse(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := start(t, media.Options{MaxBytes: 50, MemoryBytes: 1 << 20, Registry: registry}, nil)
	body := strings.Repeat("x", 10)
	for i := range 5 {
		s.mustPut(fmt.Sprintf("/media/ab/%d.pcm", i), body)
	}
	for i := range 5 {
		s.do("GET", "/media/ab/0.pcm", "")
		s.mustPut(fmt.Sprintf("/media/cd/%d.pcm", i), body)
	}
	if resp, _ := s.do("GET", "/media/ab/0.pcm", ""); resp.StatusCode != 200 {
		t.Errorf("used blob: status %d, want 200", resp.StatusCode)
	}
	if resp, _ := s.do("GET", "/media/ab/1.pcm", ""); resp.StatusCode != 404 {
		t.Errorf("unused blob: status %d, want 404", resp.StatusCode)
	}
	_, metrics := s.do("GET", "/metrics", "")
	for _, line := range []string{
		`telapi_media_requests_total{method="GET",status="200"} 6`, `telapi_media_memory_answers_total 6`,
		`telapi_media_requests_total{method="PUT",status="201"} 10`, `telapi_media_bytes_total{direction="in"} 100`,
		`telapi_media_store_objects 5`, `telapi_media_store_bytes 50`, `telapi_media_evictions_total 5`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics without %q:\n%s", line, metrics)
		}
	}
}

func TestServesThousandConnections(t *testing.T) {
	s := start(t, media.Options{MemoryBytes: 1 << 20}, nil)
	s.mustPut("/media/ab/x.pcm", withChecksum("x", 24<<10))
	conns := make([]net.Conn, 1000)
	for i := range conns {
		c, err := net.Dial("tcp", s.addr)
		testkit.Must(t, err)
		defer c.Close()
		conns[i] = c
	}
	for range 2 { // all connections stay open
		for i, c := range conns {
			path := []string{"/media/ab/x.pcm", "/media/ab/x.pcm?from-disk"}[i%2]
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		}
		for i, c := range conns {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || !isComplete(string(body)) {
				t.Fatalf("connection %d: status %d, %d bytes, %v; want a complete body", i, resp.StatusCode, len(body), err)
			}
		}
	}
}

func TestOpenRemovesOnlyUnfinishedUploads(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 0)
	put(t, s, "ab/x.pcm", "kept")
	s.Close()
	for name, kept := range map[string]bool{".uploads/1/1": false, ".uploads/x": false, "ab/notes.txt": true, "ab/.hidden": true} {
		testkit.Must(t, os.WriteFile(filepath.Join(root, name), []byte("?"), 0o600))
		s := openStore(t, root, 0)
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != kept {
			t.Errorf("%s: exists %v, want %v", name, err == nil, kept)
		}
		if got := stored(t, s); !slices.Equal(got, []string{"ab/x.pcm"}) {
			t.Errorf("stored %v, want ab/x.pcm", got)
		}
		s.Close()
	}
}

func TestRemovedUploadDirectoryIsCreatedAgain(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 0)
	defer s.Close()
	for i := range 10 { // more than there are directories
		testkit.Must(t, os.RemoveAll(filepath.Join(root, ".uploads")))
		put(t, s, fmt.Sprintf("ab/%d.pcm", i), "kept")
	}

	// A link is not followed.
	testkit.Must(t, errors.Join(os.RemoveAll(filepath.Join(root, ".uploads")), os.Symlink("ab", filepath.Join(root, ".uploads"))))
	before := tree(t, root)
	if _, err := s.Put("ab/x.pcm", strings.NewReader("x"), 1, nil); err == nil {
		t.Error("the upload followed a link")
	}
	if after := tree(t, root); !maps.Equal(before, after) {
		t.Errorf("files changed from %q to %q", before, after)
	}
}

func TestEmptyShardIsRemoved(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 10)
	put(t, s, "ab/x.pcm", "first")
	put(t, s, "cd/x.pcm", "second") // evicts the first
	testkit.Must(t, os.Mkdir(filepath.Join(root, "lost+found"), 0o750))
	s.Close()
	s = openStore(t, root, 10)
	defer s.Close()
	for name, kept := range map[string]bool{"ab": false, "cd": true, "lost+found": true} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != kept {
			t.Errorf("%s: exists %v, want %v", name, err == nil, kept)
		}
	}
	put(t, s, "ab/x.pcm", "again")
	testkit.Equal(t, "stored", stored(t, s), []string{"ab/x.pcm"})
}

func TestRootCannotBeOpenedTwice(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 0)
	if _, err := media.OpenStore(media.Options{Root: root}, nil); err == nil || !strings.Contains(err.Error(), "MEDIA_ROOT") {
		t.Errorf("second store: %v, want an error with MEDIA_ROOT", err)
	}
	s.Close()
	openStore(t, root, 0).Close()
}

func TestListIsOrderedByPath(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	defer s.Close()
	var want []string
	for _, shard := range []string{"a-b", "a", "A", "a_b", "00"} {
		for i := range 7 {
			p := fmt.Sprintf("%s/n%d.pcm", shard, i)
			put(t, s, p, p)
			want = append(want, p)
		}
	}
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		page, err := s.List(after, 4)
		testkit.Must(t, err)
		if len(page) == 0 {
			break
		}
		for _, b := range page {
			got, after = append(got, b.Path), b.Path
			if b.Bytes != int64(len(b.Path)) || b.ModifiedAt.IsZero() {
				t.Errorf("blob %+v, want %d bytes and a modification time", b, len(b.Path))
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v\nwant   %v", got, want)
	}
}

func TestFailedUploadLeavesNothing(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root, 0)
	defer s.Close()
	put(t, s, "ab/x.pcm", "first")
	errRejected := errors.New("rejected")
	for name, upload := range map[string]func() (bool, error){
		"short body": func() (bool, error) {
			return s.Put("ab/x.pcm", strings.NewReader("sec"), 6, nil)
		},
		"failing body": func() (bool, error) {
			return s.Put("ab/x.pcm", io.MultiReader(strings.NewReader("sec"), &failingReader{errRejected}), 6, nil)
		},
		"failed precondition": func() (bool, error) {
			return s.Put("ab/x.pcm", strings.NewReader("second"), 6, func(string, time.Time) error { return errRejected })
		},
	} {
		if _, err := upload(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if files := filesBelow(t, root); !slices.Equal(files, []string{".lock", "ab/x.pcm"}) {
			t.Errorf("%s: files %v, want .lock and ab/x.pcm", name, files)
		}
		if body, _ := os.ReadFile(filepath.Join(root, "ab/x.pcm")); string(body) != "first" {
			t.Errorf("%s: stored %q, want the first upload", name, body)
		}
	}
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

// withChecksum returns a body that ends with its checksum.
func withChecksum(fill string, n int) string {
	body := strings.Repeat(fill, n)
	sum := sha256.Sum256([]byte(body))
	return body + hex.EncodeToString(sum[:])
}

// isComplete verifies the checksum.
func isComplete(body string) bool {
	cut := len(body) - 2*sha256.Size
	if cut < 0 {
		return false
	}
	sum := sha256.Sum256([]byte(body[:cut]))
	return hex.EncodeToString(sum[:]) == body[cut:]
}

// While writers replace, delete and evict blobs, readers get complete bodies, and
// see a change after it was acknowledged.
func TestReadersSeeCompleteAndCurrentBodies(t *testing.T) {
	s := start(t, media.Options{MemoryBytes: 1 << 20, MaxBytes: 1 << 20}, nil)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			private := fmt.Sprintf("/media/w%d/x.pcm", w) // changed by this writer only
			for i := range 60 {
				body := withChecksum(fmt.Sprint(w, ".", i, ";"), 10+i*50)
				s.do("PUT", "/media/ab/shared.pcm", body)
				s.do("PUT", private, body)
				for range 3 {
					if resp, got := s.do("GET", private, ""); got != body {
						t.Errorf("GET after PUT: status %d with another body of %d bytes, want the %d bytes sent", resp.StatusCode, len(got), len(body))
					}
				}
				if i%5 == 0 {
					s.do("DELETE", private, "")
					if resp, _ := s.do("GET", private, ""); resp.StatusCode != 404 {
						t.Errorf("GET after DELETE: status %d, want 404", resp.StatusCode)
					}
				}
				if resp, got := s.do("GET", "/media/ab/shared.pcm", ""); resp.StatusCode != 200 || !isComplete(got) {
					t.Errorf("shared blob: status %d with %d bytes, want a complete body", resp.StatusCode, len(got))
				}
			}
		})
	}
	wg.Wait()
}

func TestSizeLimitHoldsWithConcurrentWriters(t *testing.T) {
	const maxBytes = 20_000
	root := t.TempDir()
	s := openStore(t, root, maxBytes)
	defer s.Close()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				put(t, s, fmt.Sprintf("%02x/%d-%d.pcm", i%16, w, i%40), strings.Repeat("x", 100+i))
			}
		})
	}
	wg.Wait()
	var bytes int64
	list, err := s.List("", 10_000)
	for _, b := range list {
		bytes += b.Bytes
	}
	if err != nil || bytes > maxBytes || bytes < maxBytes-200 {
		t.Errorf("%d bytes in %d blobs, %v; want at most %d and nearly as many", bytes, len(list), err, maxBytes)
	}
}

func TestETagsAreUnique(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	defer s.Close()
	seen := map[string]bool{}
	for i := range 200 {
		put(t, s, "ab/x.pcm", fmt.Sprintf("%04d", i))
		b, err := s.Open("ab/x.pcm")
		testkit.Must(t, err)
		if seen[b.ETag] {
			t.Fatalf("ETag %s was reused", b.ETag)
		}
		seen[b.ETag] = true
		b.Close()
	}
}
