package fastlane_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"telapi/internal/media/internal/fastlane"
	"telapi/test/testkit"
)

// register is a blob that one writer creates and deletes alternately. It exists if
// its version is odd, and contains the version.
type register struct {
	path                string
	reads               atomic.Int64
	started, done, seen atomic.Int64 // versions that the writer started and finished, and the newest that a reader got
}

func (r *register) write(t *testing.T, s blobDir, fastPath *fastlane.FastPath) {
	version := r.started.Add(1)
	name := filepath.Join(s.dir, r.path)
	change := func() error { return os.Remove(name) }
	if version%2 == 1 {
		// Sizes below and above minSendfile.
		content := strings.Repeat(fmt.Sprintf("%08d", version), int(1<<10+version%3*(2<<10)))
		testkit.Must(t, os.WriteFile(name+".new", []byte(content), 0o600))
		change = func() error { return os.Rename(name+".new", name) }
	}
	testkit.Must(t, fastPath.Change(r.path, change))
	r.done.Store(version)
}

// read checks that the response was current at some time between request and
// response, and that no reader has seen a newer version before.
func (r *register) read(t *testing.T, c client, header string) {
	oldest := max(r.done.Load(), r.seen.Load())
	c.send("GET " + r.path + " HTTP/1.1\r\nHost: a\r\n" + header + "\r\n")
	status, body := c.receive()
	newest := r.started.Load()
	r.reads.Add(1)
	if status == http.StatusNotFound {
		if oldest%2 == 1 && oldest == newest {
			t.Errorf("status 404, want version %d", oldest)
		}
		return
	}
	version, err := strconv.ParseInt(body[:8], 10, 64)
	if err != nil || body != strings.Repeat(body[:8], len(body)/8) {
		t.Errorf("status %d with mixed versions: %v", status, err)
	}
	if version < oldest || version > newest {
		t.Errorf("version %d, want %d to %d", version, oldest, newest)
	}
	for last := r.seen.Load(); last < version && !r.seen.CompareAndSwap(last, version); {
		last = r.seen.Load()
	}
}

func TestReplacedAndDeletedBlobsAreNotServed(t *testing.T) {
	s := newBlobDir(t, nil)
	fastPath := fastlane.New(fastlane.Options{MaxBytes: maxBytes, Load: func(path string, limit int64) (fastlane.Blob, bool) {
		blob, ok := s.load(path, limit)
		for range rand.IntN(20) {
			runtime.Gosched() // let changes interleave
		}
		return blob, ok
	}})
	server := start(t, s, fastPath, nil)
	var writers, readers sync.WaitGroup
	var stop atomic.Bool
	for i := range 3 {
		r := &register{path: fmt.Sprintf("/%d.alaw", i)}
		writers.Go(func() {
			for range 60 {
				r.write(t, s, fastPath)
				for enough := r.reads.Load() + 10; r.reads.Load() < enough && !t.Failed(); {
					runtime.Gosched()
				}
			}
		})
		for j := range 4 {
			c := server.dial(t)
			readers.Go(func() {
				for k := 0; !stop.Load() && !t.Failed(); k++ {
					r.read(t, c, []string{"", "", "", "Range: bytes=0-7\r\n"}[(j+k)%4])
				}
			})
		}
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if fastPath.Stats().Hits == 0 {
		t.Error("no response from the cache")
	}
}

func TestConcurrentChangeAndLoad(t *testing.T) {
	const path = "/x.alaw"
	for name, race := range map[string]func(c client, loading, proceed chan struct{}, change func(before func())){
		"change during a load": func(c client, loading, proceed chan struct{}, change func(before func())) {
			c.send(plainGet(path))
			<-loading
			change(func() {})
			close(proceed)
			c.receive() // either version
		},
		"request during a change": func(c client, loading, proceed chan struct{}, change func(before func())) {
			close(proceed)
			change(func() {
				c.send(plainGet(path))
				if _, body := c.receive(); body != "old" {
					t.Errorf("body %q before the change, want old", body)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBlobDir(t, map[string]string{path: "old"})
			loading, proceed := make(chan struct{}, 9), make(chan struct{})
			fastPath := fastlane.New(fastlane.Options{MaxBytes: maxBytes, Load: func(path string, limit int64) (fastlane.Blob, bool) {
				blob, ok := s.load(path, limit)
				loading <- struct{}{}
				<-proceed
				return blob, ok
			}})
			c := start(t, s, fastPath, nil).dial(t)
			race(c, loading, proceed, func(before func()) {
				if err := fastPath.Change(path, func() error {
					before()
					name := filepath.Join(s.dir, path)
					return errors.Join(os.WriteFile(name+".new", []byte("new"), 0o600), os.Rename(name+".new", name))
				}); err != nil {
					t.Error(err)
				}
			})
			c.send(plainGet(path))
			if _, body := c.receive(); body != "new" {
				t.Errorf("body %q after the change, want new", body)
			}
		})
	}
}

func TestCacheIsLimitedAndKeepsUsedBlobs(t *testing.T) {
	blobs := map[string]string{"/hot.alaw": "hot", "/huge.alaw": strings.Repeat("x", 200<<10)}
	for i := range 100 {
		blobs[fmt.Sprintf("/%d.alaw", i)] = strings.Repeat("x", 10<<10+i*200)
	}
	s := newBlobDir(t, blobs)
	const maxCached = 1 << 20
	var loads atomic.Int64
	fastPath := fastlane.New(fastlane.Options{MaxBytes: maxCached, Load: func(path string, limit int64) (fastlane.Blob, bool) {
		blob, ok := s.load(path, limit)
		if ok {
			loads.Add(1)
		}
		return blob, ok
	}})
	c := start(t, s, fastPath, nil).dial(t)
	get := func(path string) {
		c.send(plainGet(path))
		if _, body := c.receive(); body != blobs[path] {
			t.Fatalf("%s: %d bytes, want %d", path, len(body), len(blobs[path]))
		}
		if n := fastPath.Stats().Bytes; n > maxCached {
			t.Fatalf("%d bytes cached, want at most %d", n, maxCached)
		}
	}
	get("/hot.alaw")
	for i := range 300 {
		get("/hot.alaw")
		get(fmt.Sprintf("/%d.alaw", i%100))
	}
	if n := fastPath.Stats().Bytes; n < maxCached/2 {
		t.Errorf("%d bytes cached, want at least %d", n, maxCached/2)
	}
	loadsBefore, hitsBefore := loads.Load(), fastPath.Stats().Hits
	get("/hot.alaw")
	get("/huge.alaw")
	if newLoads, newHits := loads.Load()-loadsBefore, fastPath.Stats().Hits-hitsBefore; newLoads != 0 || newHits != 1 {
		t.Errorf("%d loads and %d hits, want 0 and 1: a used blob was evicted, or a large one cached", newLoads, newHits)
	}
}

func TestDeletionDoesNotAffectActiveResponse(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 1<<20)
	s := newBlobDir(t, map[string]string{"/large.pcm": content})
	server := serve(t, s, nil)
	c := server.dial(t)
	c.send(plainGet("/large.pcm"))
	testkit.Must(t, testkit.ErrorOf(c.in.Peek(1)))
	testkit.Must(t, server.fastPath.Change("/large.pcm", func() error { return os.Remove(filepath.Join(s.dir, "large.pcm")) }))
	if _, body := c.receive(); body != content {
		t.Errorf("another body of %d bytes, want all %d of the deleted blob", len(body), len(content))
	}
	c.send(plainGet("/large.pcm"))
	if status, _ := c.receive(); status != http.StatusNotFound {
		t.Errorf("status %d after the deletion, want 404", status)
	}
}
