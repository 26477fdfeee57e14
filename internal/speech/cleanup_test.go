package speech

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
)

// shelf is rows and blobs with ages, and leases that can be taken away.
type shelf struct {
	Store
	BlobStore
	Leases
	sync.Mutex
	rows   map[string]Recording
	blobs  map[string]time.Time // when they were stored
	away   error
	taken  map[string]bool
	during func(path string) // called before a blob is deleted
}

func (s *shelf) lock() func() { s.Lock(); return s.Unlock }

func (s *shelf) Speech(_ context.Context, hash string) (Recording, error) {
	defer s.lock()()
	if r, ok := s.rows[hash]; ok {
		return r, nil
	}
	return Recording{}, fault.New(fault.NotFound, "There is none.")
}

func (s *shelf) DeleteSpeechVariant(_ context.Context, hash string, e Encoding, checksum string) error {
	defer s.lock()()
	r := s.rows[hash]
	r.Variants = without(r.Variants, e, checksum)
	if s.rows[hash] = r; len(r.Variants) == 0 {
		delete(s.rows, hash)
	}
	return nil
}

func (s *shelf) ListSpeech(_ context.Context, after string, expiredBy time.Time, limit int) (page []Recording, _ error) {
	defer s.lock()()
	for _, hash := range slices.Sorted(maps.Keys(s.rows)) {
		if hash > after && len(page) < limit && (expiredBy.IsZero() || s.rows[hash].expired(expiredBy)) {
			page = append(page, s.rows[hash])
		}
	}
	return page, nil
}

func (s *shelf) DeleteExpiredSpeech(_ context.Context, r Recording) error {
	defer s.lock()()
	if s.rows[r.Hash].ExpiresAt.Equal(r.ExpiresAt) {
		delete(s.rows, r.Hash)
	}
	return nil
}

func (s *shelf) Get(_ context.Context, path string, ask Conditions) (Blob, error) {
	defer s.lock()()
	if _, ok := s.blobs[path]; !ok && s.away == nil {
		return Blob{}, ErrBlobNotFound
	}
	return Blob{Status: 200, Body: io.NopCloser(strings.NewReader(""))}, s.away
}

func (s *shelf) DeleteUnmodifiedSince(_ context.Context, path string, since time.Time) (bool, error) {
	defer s.lock()()
	if s.during != nil {
		s.during(path)
	}
	if s.away != nil || s.blobs[path].After(since) {
		return false, s.away
	}
	delete(s.blobs, path)
	return true, nil
}

func (s *shelf) List(_ context.Context, after string, limit int) (page []BlobInfo, _ error) {
	defer s.lock()()
	for _, path := range slices.Sorted(maps.Keys(s.blobs)) {
		if path > after && len(page) < limit {
			page = append(page, BlobInfo{Path: path, ModifiedAt: s.blobs[path]})
		}
	}
	return page, s.away
}

func (s *shelf) Try(ctx context.Context, name string) (context.Context, func(), bool, error) {
	defer s.lock()()
	if s.taken[name] {
		return nil, nil, false, nil
	}
	s.taken[name] = true
	return ctx, func() { defer s.lock()(); delete(s.taken, name) }, true, nil
}

func newShelf() *shelf {
	return &shelf{rows: map[string]Recording{}, blobs: map[string]time.Time{}, taken: map[string]bool{}}
}

func (s *shelf) cleaner(now func() time.Time) *Cleaner {
	return NewCleaner(s, s, s, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), now)
}

var shelfTime = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func always() time.Time { return shelfTime }

func hashOf(n int) string { return Key("t", fmt.Sprint(n), 8000, Utterance{}) }

// store adds a row with variants, and their blobs.
func (s *shelf) store(hash string, expires time.Time, encodings ...Encoding) {
	row := Recording{Hash: hash, ExpiresAt: expires, Variants: map[Encoding]string{}}
	for _, e := range encodings {
		row.Variants[e] = "sum"
		s.blobs[BlobPath(hash, e)] = shelfTime.Add(-48 * time.Hour)
	}
	s.rows[hash] = row
}

// Thousands of sentences in all states there are: after a cleanup every row has
// its blobs, every blob its row, and nothing else is gone.
func TestCleanupRemovesThisAndNothingElse(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		s, want := newShelf(), map[string]string{}
		kept := newShelf()
		for n := range random.IntN(2500) + 2 {
			hash, alaw, pcm := hashOf(n), BlobPath(hashOf(n), ALaw), BlobPath(hashOf(n), PCM)
			switch kind := random.IntN(12); {
			case n == 0 || kind < 5:
				s.store(hash, time.Time{}, Encodings[:1+random.IntN(2)]...)
				kept.store(hash, time.Time{}, slices.Collect(maps.Keys(s.rows[hash].Variants))...)
			case kind == 5: // not yet
				s.store(hash, shelfTime.Add(time.Second), PCM)
				kept.store(hash, shelfTime.Add(time.Second), PCM)
			case kind == 6:
				s.store(hash, shelfTime.Add(-time.Second), ALaw, PCM)
				want[alaw], want[pcm] = Expired, Expired
			case kind == 7: // of which a blob is gone already
				s.store(hash, shelfTime, ALaw, PCM)
				delete(s.blobs, pcm)
				want[alaw], want[pcm] = Expired, Expired
			case kind == 8:
				s.blobs[pcm] = shelfTime.Add(-orphanAge)
				want[pcm] = Orphan
			case kind == 9: // whose row will come
				s.blobs[alaw], kept.blobs[alaw] = shelfTime.Add(1-orphanAge), time.Time{}
			case kind == 10: // a row of another variant
				s.store(hash, time.Time{}, PCM)
				kept.store(hash, time.Time{}, PCM)
				s.blobs[alaw], want[alaw] = time.Time{}, Orphan
			case kind == 11: // one of two blobs was evicted
				s.store(hash, time.Time{}, ALaw, PCM)
				kept.store(hash, time.Time{}, PCM)
				delete(s.blobs, alaw)
				want[alaw] = Lost
			}
		}
		for _, foreign := range []string{"ab/hello.pcm", "zz/" + hashOf(1) + ".pcm", hashOf(2)[:2] + "/" + strings.ToUpper(hashOf(2)) + ".alaw"} {
			s.blobs[foreign], kept.blobs[foreign] = time.Time{}, time.Time{}
		}
		told := map[string]string{}
		tell := func(r Removal) { told[r.Path] = r.Reason }
		before, blobs := maps.Clone(s.rows), maps.Clone(s.blobs)
		if err := s.cleaner(always).Clean(t.Context(), true, tell); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(s.blobs, blobs) || len(s.rows) != len(before) {
			t.Fatal("a preview removed something")
		}
		if !maps.Equal(told, want) {
			t.Errorf("the preview tells of %d removals, want %d", len(told), len(want))
		}
		told = map[string]string{}
		if err := s.cleaner(always).Clean(t.Context(), false, tell); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(told, want) {
			t.Errorf("%d removals told, want %d", len(told), len(want))
		}
		same := func(a, b Recording) bool { return maps.Equal(a.Variants, b.Variants) && a.ExpiresAt.Equal(b.ExpiresAt) }
		if !maps.EqualFunc(s.rows, kept.rows, same) || !slices.Equal(slices.Sorted(maps.Keys(s.blobs)), slices.Sorted(maps.Keys(kept.blobs))) {
			t.Errorf("%d rows and %d blobs are left, want %d and %d", len(s.rows), len(s.blobs), len(kept.rows), len(kept.blobs))
		}
		if len(s.taken) != 0 {
			t.Errorf("leases were not given back: %v", s.taken)
		}
	}
}

func TestNothingIsDropped(t *testing.T) {
	for name, tt := range map[string]struct {
		situation func(s *shelf)
		fails     error
	}{
		"while the media service is away":               {func(s *shelf) { s.away = ErrBlobsUnavailable }, ErrBlobsUnavailable},
		"where an address answers 404 to everything":    {func(s *shelf) { s.away = ErrBlobNotFound }, ErrBlobNotFound},
		"while somebody else cleans up":                 {func(s *shelf) { s.taken[cleanupLease] = true }, errBusy},
		"of a volume that is not mounted":               {func(s *shelf) { clear(s.blobs); delete(s.rows, hashOf(1)) }, nil},
		"of another database's":                         {func(s *shelf) { clear(s.rows) }, nil},
		"when the media service goes away in the midst": {func(s *shelf) { s.during = func(string) { s.away = ErrBlobsUnavailable } }, ErrBlobsUnavailable},
		"that is made anew after the look":              {func(s *shelf) { s.during = func(path string) { s.blobs[path] = shelfTime.Add(1) } }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf()
			s.store(hashOf(0), time.Time{}, PCM)
			s.store(hashOf(1), shelfTime, PCM)
			s.blobs[BlobPath(hashOf(2), PCM)] = time.Time{}
			tt.situation(s)
			rows, blobs := len(s.rows), len(s.blobs)
			err := s.cleaner(always).Clean(t.Context(), false, func(r Removal) { t.Errorf("removed: %+v", r) })
			if !errors.Is(err, tt.fails) || len(s.rows) != rows || len(s.blobs) != blobs {
				t.Errorf("%v, want %v; %d of %d rows and %d of %d blobs are left", err, tt.fails, len(s.rows), rows, len(s.blobs), blobs)
			}
		})
	}
}

// Of several instances one cleans up, every minute; when it ends another does.
func TestOneInstanceCleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, b := newShelf(), new(atomic.Int64), new(atomic.Int64)
		start := func(looks *atomic.Int64) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			j := s.cleaner(func() time.Time { looks.Add(1); return time.Now() })
			go func() { defer close(done); j.Run(ctx) }()
			synctest.Wait()
			return func() { cancel(); <-done }
		}
		change := func(do func()) { defer s.lock()(); do() }
		stopA, stopB := start(a), start(b)
		change(func() {
			s.store(hashOf(0), time.Time{}, PCM)
			s.store(hashOf(1), time.Now().Add(30*time.Second), PCM)
			s.blobs[BlobPath(hashOf(1), PCM)] = time.Now()
		})
		time.Sleep(2 * time.Minute)
		change(func() {
			if b.Load() != 0 || len(s.rows) != 1 || len(s.blobs) != 1 {
				t.Errorf("the second cleaned %d times; %d rows and %d blobs are left", b.Load(), len(s.rows), len(s.blobs))
			}
		})
		stopA()
		change(func() { s.blobs[BlobPath(hashOf(2), PCM)] = time.Now() })
		time.Sleep(3 * time.Hour)
		change(func() {
			if b.Load() == 0 || len(s.blobs) != 1 {
				t.Errorf("the second cleaned %d times; %d blobs are left", b.Load(), len(s.blobs))
			}
		})
		stopB()
	})
}

// At a start the database is not ready yet, which is no reason to alarm anybody.
func TestCleanupComplainsOfWhatNobodyElseReports(t *testing.T) {
	for name, tt := range map[string]struct {
		fails error
		says  bool
	}{
		"a database that is not ready":   {fault.Unavailable("The database", errors.New("not migrated yet")), false},
		"a media service that is away":   {ErrBlobsUnavailable, true},
		"a media service of other words": {errors.New("line 1: no JSON"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				s.away = tt.fails
				var said strings.Builder
				turn, cancel := context.WithTimeout(t.Context(), expireEvery/2)
				defer cancel()
				NewCleaner(s, s, s, slog.New(slog.NewTextHandler(&said, nil)), prometheus.NewRegistry(), time.Now).serve(turn)
				if strings.Contains(said.String(), "not cleaned up") != tt.says {
					t.Errorf("it says %q", said.String())
				}
			})
		})
	}
}
