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
	"time"

	"telapi/internal/media/fastlane"
)

// register is an object that one writer puts and deletes in turns: it is there
// with its version in it when that is odd, and absent when it is even.
type register struct {
	path                 string
	reads                atomic.Int64
	begun, done, noticed atomic.Int64 // versions: of the writer, and of any reader so far
}

func (r *register) write(t *testing.T, s shelf, lane *fastlane.Lane) {
	version := r.begun.Add(1)
	name := filepath.Join(s.dir, r.path)
	change := func() error { return os.Remove(name) }
	if version%2 == 1 {
		// Longer and shorter than what is sent from a file.
		content := strings.Repeat(fmt.Sprintf("%08d", version), int(1<<10+version%3*(2<<10)))
		if err := os.WriteFile(name+".new", []byte(content), 0o600); err != nil {
			t.Error(err)
		}
		change = func() error { return os.Rename(name+".new", name) }
	}
	if err := lane.Change(r.path, change); err != nil {
		t.Error(err)
	}
	r.done.Store(version)
}

// read checks that what is answered was there at some time between the request
// and the answer, and that nobody has seen something newer before.
func (r *register) read(t *testing.T, c client, header string) {
	oldest := max(r.done.Load(), r.noticed.Load())
	c.send("GET " + r.path + " HTTP/1.1\r\nHost: a\r\n" + header + "\r\n")
	status, body := c.receive()
	newest := r.begun.Load()
	r.reads.Add(1)
	if status == http.StatusNotFound {
		if oldest%2 == 1 && oldest == newest {
			t.Errorf("absent, but version %d was there all the time", oldest)
		}
		return
	}
	version, err := strconv.ParseInt(body[:8], 10, 64)
	if err != nil || body != strings.Repeat(body[:8], len(body)/8) {
		t.Errorf("status %d with a mixture: %v", status, err)
	}
	if version < oldest || version > newest {
		t.Errorf("version %d, when only %d to %d could be there", version, oldest, newest)
	}
	for seen := r.noticed.Load(); seen < version && !r.noticed.CompareAndSwap(seen, version); {
		seen = r.noticed.Load()
	}
}

func TestNobodyGetsWhatWasReplacedOrDeleted(t *testing.T) {
	s := newShelf(t, nil)
	lane := fastlane.New(fastlane.Options{MaxBytes: maxBytes, Load: func(path string, limit int64) (fastlane.Blob, bool) {
		o, ok := s.load(path, limit)
		for range rand.IntN(20) {
			runtime.Gosched() // so that a change may come in between
		}
		return o, ok
	}})
	st := start(t, s, lane, nil)
	var writers, readers sync.WaitGroup
	var stop atomic.Bool
	for i := range 3 {
		r := &register{path: fmt.Sprintf("/%d.alaw", i)}
		writers.Go(func() {
			for range 60 {
				r.write(t, s, lane)
				for enough := r.reads.Load() + 10; r.reads.Load() < enough && !t.Failed(); {
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
		for j := range 4 {
			c := st.dial(t)
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
	if lane.Stats().Hits == 0 {
		t.Error("the lane answered nothing")
	}
}

func TestAChangeAndALoadAtTheSameTime(t *testing.T) {
	const path = "/x.alaw"
	for name, race := range map[string]func(c client, loading, goOn chan struct{}, change func(before func())){
		"the change comes while the old object is loaded": func(c client, loading, goOn chan struct{}, change func(before func())) {
			c.send(plainGet(path))
			<-loading
			change(func() {})
			close(goOn)
			c.receive() // the old or the new one
		},
		"a reader comes while the object changes": func(c client, loading, goOn chan struct{}, change func(before func())) {
			close(goOn)
			change(func() {
				c.send(plainGet(path))
				if _, body := c.receive(); body != "old" {
					t.Errorf("%q before it was changed", body)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, map[string]string{path: "old"})
			loading, goOn := make(chan struct{}, 9), make(chan struct{})
			lane := fastlane.New(fastlane.Options{MaxBytes: maxBytes, Load: func(path string, limit int64) (fastlane.Blob, bool) {
				o, ok := s.load(path, limit)
				loading <- struct{}{}
				<-goOn
				return o, ok
			}})
			c := start(t, s, lane, nil).dial(t)
			race(c, loading, goOn, func(before func()) {
				if err := lane.Change(path, func() error {
					before()
					name := filepath.Join(s.dir, path)
					return errors.Join(os.WriteFile(name+".new", []byte("new"), 0o600), os.Rename(name+".new", name))
				}); err != nil {
					t.Error(err)
				}
			})
			c.send(plainGet(path))
			if _, body := c.receive(); body != "new" {
				t.Errorf("%q after it was changed", body)
			}
		})
	}
}

func TestMemoryIsBoundedAndKeepsWhatIsUsed(t *testing.T) {
	objects := map[string]string{"/hot.alaw": "hot", "/huge.alaw": strings.Repeat("x", 200<<10)}
	for i := range 100 {
		objects[fmt.Sprintf("/%d.alaw", i)] = strings.Repeat("x", 10<<10+i*200)
	}
	s := newShelf(t, objects)
	const most = 1 << 20
	lane := fastlane.New(fastlane.Options{MaxBytes: most, Load: s.load})
	c := start(t, s, lane, nil).dial(t)
	get := func(path string) {
		c.send(plainGet(path))
		if _, body := c.receive(); body != objects[path] {
			t.Fatalf("%s: %d bytes", path, len(body))
		}
		if n := lane.Stats().Bytes; n > most {
			t.Fatalf("%d bytes are held", n)
		}
	}
	get("/hot.alaw")
	for i := range 300 {
		get("/hot.alaw")
		get(fmt.Sprintf("/%d.alaw", i%100))
	}
	if n := lane.Stats().Bytes; n < most/2 {
		t.Errorf("only %d of %d bytes are used", n, most)
	}
	before := lane.Stats()
	get("/hot.alaw")
	get("/huge.alaw")
	after := lane.Stats()
	if after.Loads != before.Loads || after.Hits != before.Hits+1 {
		t.Errorf("what is used all the time was dropped, or one object may take everything: %+v, then %+v", before, after)
	}
}

func TestAReaderKeepsWhatIsDeletedMeanwhile(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 1<<20)
	s := newShelf(t, map[string]string{"/large.pcm": content})
	st := serve(t, s, nil)
	c := st.dial(t)
	c.send(plainGet("/large.pcm"))
	if _, err := c.in.Peek(1); err != nil {
		t.Fatal(err)
	}
	if err := st.lane.Change("/large.pcm", func() error { return os.Remove(filepath.Join(s.dir, "large.pcm")) }); err != nil {
		t.Fatal(err)
	}
	if _, body := c.receive(); body != content {
		t.Errorf("%d bytes, or others", len(body))
	}
	c.send(plainGet("/large.pcm"))
	if status, _ := c.receive(); status != http.StatusNotFound {
		t.Errorf("status %d after it was deleted", status)
	}
}
