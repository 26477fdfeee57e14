package speech

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/audio"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

// world is everything around a service, in memory. Adapters keep the same
// promises on real stores, where the whole is tried too.
type world struct {
	Store // nil: what only cleanups call
	BlobStore
	Leases
	sync.Mutex
	rows    map[string]Recording
	blobs   map[string][]byte
	away    bool // the media service
	held    map[string]chan struct{}
	entries []wire.SpeechReport
	clock   atomic.Int64
}

func newWorld() *world {
	w := &world{rows: map[string]Recording{}, blobs: map[string][]byte{}, held: map[string]chan struct{}{}}
	w.clock.Store(time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC).UnixNano())
	return w
}

func (w *world) now() time.Time       { return time.Unix(0, w.clock.Load()).UTC() }
func (w *world) pass(d time.Duration) { w.clock.Add(int64(d)) }
func (w *world) setAway(away bool)    { w.Lock(); defer w.Unlock(); w.away = away }
func (w *world) counted() int         { w.Lock(); defer w.Unlock(); return len(w.entries) }
func (w *world) billed() (sum int64) {
	w.Lock()
	defer w.Unlock()
	for _, e := range w.entries {
		if !e.Cached {
			sum += e.Characters
		}
	}
	return sum
}
func (w *world) stored() []string {
	w.Lock()
	defer w.Unlock()
	return slices.Sorted(maps.Keys(w.blobs))
}
func (w *world) damage(path, as string) { w.Lock(); defer w.Unlock(); w.blobs[path] = []byte(as) }

func (w *world) Speech(_ context.Context, hash string) (Recording, error) {
	w.Lock()
	defer w.Unlock()
	if r, ok := w.rows[hash]; ok {
		return r, nil
	}
	return Recording{}, fault.New(fault.NotFound, "There is no speech with this id.")
}

func (w *world) SaveSpeech(_ context.Context, r Recording) (Recording, error) {
	w.Lock()
	defer w.Unlock()
	if old, ok := w.rows[r.Hash]; ok && !old.expired(r.CreatedAt) {
		added := r.Variants
		r, r.Variants = old, maps.Clone(old.Variants)
		maps.Copy(r.Variants, added)
	}
	w.rows[r.Hash] = r
	return r, nil
}

func (w *world) DeleteSpeechVariant(_ context.Context, hash string, e Encoding, checksum string) error {
	w.Lock()
	defer w.Unlock()
	r := w.rows[hash]
	r.Variants = without(r.Variants, e, checksum)
	if w.rows[hash] = r; len(r.Variants) == 0 {
		delete(w.rows, hash)
	}
	return nil
}

func without(variants map[Encoding]string, e Encoding, checksum string) map[Encoding]string {
	left := maps.Clone(variants)
	maps.DeleteFunc(left, func(have Encoding, sum string) bool { return have == e && sum == checksum })
	return left
}

var errGone = fmt.Errorf("%w: nobody listens", ErrBlobsUnavailable)

func (w *world) Get(_ context.Context, path string, _ Conditions) (Blob, error) {
	w.Lock()
	defer w.Unlock()
	blob, ok := w.blobs[path]
	switch {
	case w.away:
		return Blob{}, errGone
	case !ok:
		return Blob{}, ErrBlobNotFound
	}
	return Blob{Status: 200, Headers: map[string]string{"ETag": checksum(blob)}, Body: io.NopCloser(bytes.NewReader(blob))}, nil
}

func (w *world) Put(ctx context.Context, path string, content []byte) error {
	w.Lock()
	defer w.Unlock()
	if w.away || ctx.Err() != nil {
		return errGone
	}
	if len(content) > 10_000 {
		return ErrBlobRejected
	}
	w.blobs[path] = content
	return nil
}

func (w *world) DeleteIfMatch(_ context.Context, path, etag string) (bool, error) {
	w.Lock()
	defer w.Unlock()
	if blob, ok := w.blobs[path]; ok && checksum(blob) != etag {
		return false, nil
	}
	delete(w.blobs, path)
	return true, nil
}

func (w *world) Acquire(ctx context.Context, name string) (release func(), waited bool, err error) {
	for {
		w.Lock()
		other, taken := w.held[name]
		if !taken {
			mine := make(chan struct{})
			w.held[name] = mine
			w.Unlock()
			return func() { w.Lock(); defer w.Unlock(); delete(w.held, name); close(mine) }, waited, nil
		}
		w.Unlock()
		waited = true
		select {
		case <-other:
		case <-ctx.Done():
			return nil, waited, ctx.Err()
		}
	}
}

func (w *world) Record(_ context.Context, e wire.SpeechReport) {
	w.Lock()
	defer w.Unlock()
	w.entries = append(w.entries, e)
}

// endpoints holds the endpoint ep_1 of team t1.
type endpoints struct{}

func (endpoints) Get(_ context.Context, teamID, id string) (endpoint.Endpoint, error) {
	if teamID == "t1" && id == "ep_1" {
		return endpoint.Endpoint{}, nil
	}
	return endpoint.Endpoint{}, fault.New(fault.NotFound, "There is no such endpoint.")
}

// voice is a provider that does as it is told.
type voice struct {
	name  string
	said  atomic.Int64
	fails atomic.Pointer[error]
	gate  chan struct{} // nil: speaks at once
	takes func()        // what goes by meanwhile
}

func (v *voice) Name() string { return v.name }
func (v *voice) fail(err error) *voice {
	v.fails.Store(&err)
	return v
}

func (v *voice) Resolve(name, model string) (string, string) {
	if name == "" {
		name = v.name + "-voice"
	}
	return name, model
}

func (v *voice) Synthesize(ctx context.Context, u Utterance) (audio.Sound, error) {
	v.said.Add(1)
	if v.gate != nil {
		select {
		case <-v.gate:
		case <-ctx.Done():
			return audio.Sound{}, ctx.Err()
		}
	}
	if v.takes != nil {
		v.takes()
	}
	if strings.Contains(u.Text, "panic") {
		panic(u.Text)
	}
	if err := v.fails.Load(); err != nil && *err != nil {
		return audio.Sound{}, *err
	}
	s := audio.Sound{Rate: 8000, Samples: make([]int16, 100*len(u.Text))}
	for i := range s.Samples {
		s.Samples[i] = int16(i * len(v.name))
	}
	return s, nil
}

var errDown = errors.New("connection refused")

// service is one instance in the world.
func (w *world) service(t *testing.T, providers ...Provider) *Service {
	t.Helper()
	return NewService(Deps{
		Store: w, Blobs: w, Leases: w, Reporter: w, Endpoints: endpoints{}, Providers: providers, Retries: 1,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: w.now,
	})
}

func speak(t *testing.T, s *Service, body string) Response {
	t.Helper()
	a, err := s.Synthesize(t.Context(), "t1", []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return a
}

// listen reads what a URL leads to.
func listen(t *testing.T, s *Service, url string) []byte {
	t.Helper()
	blob, err := s.Open(t.Context(), "t1", url[len(Route)+1:], Conditions{})
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer blob.Body.Close()
	sound, err := io.ReadAll(blob.Body)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return sound
}
