package speech_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/leaks"
	"telapi/test/speechtest"
	"telapi/test/sqlite"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// env is the environment of services: a SQLite database, in-memory blobs and
// leases that pass the conformance suites of the real ones, and a clock.
type env struct {
	*sqlstore.Store
	blobs  *speechtest.Blobs
	leases *speechtest.Leases
	clock  atomic.Int64 // Unix nanoseconds

	mu      sync.Mutex
	reports []wire.SpeechReport
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{Store: sqlite.Open(t, t.TempDir()), leases: speechtest.NewLeases()}
	e.blobs = speechtest.NewBlobs(e.now)
	e.clock.Store(time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC).UnixNano())
	return e
}

func (e *env) now() time.Time          { return time.Unix(0, e.clock.Load()).UTC() }
func (e *env) advance(d time.Duration) { e.clock.Add(int64(d)) }

// Report records a usage report.
func (e *env) Report(_ context.Context, report wire.SpeechReport) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports = append(e.reports, report)
}

// reported returns all reports and the number of billed characters.
func (e *env) reported() (reports []wire.SpeechReport, billed int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.reports {
		if !r.Cached {
			billed += r.Characters
		}
	}
	return e.reports, billed
}

func (e *env) billed() int64 { _, billed := e.reported(); return billed }

// endpoints holds the endpoint ep_1 of team t1.
type endpoints struct{}

func (endpoints) Endpoint(_ context.Context, teamID, id string) (team.Endpoint, error) {
	if teamID == "t1" && id == "ep_1" {
		return team.Endpoint{}, nil
	}
	return team.Endpoint{}, fault.New(fault.NotFound, "Endpoint not found.")
}

// service returns a service like that of one instance.
func (e *env) service(t *testing.T, providers ...speech.Provider) *speech.Service {
	t.Helper()
	s := speech.NewService(speech.Deps{
		Store: e, Blobs: e.blobs, Leases: e.leases, Usage: e, Endpoints: endpoints{}, Providers: providers, Retries: 1, TeamShare: 50,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: e.now,
	})
	t.Cleanup(s.Close)
	return s
}

// provider is a speech.Provider with a configurable result.
type provider struct {
	name    string
	calls   atomic.Int64
	failure atomic.Pointer[error] // result of each call, unless nil
	started chan struct{}         // if set, receives a value for each call
	gate    chan struct{}         // if set, calls wait until it is closed
	delay   func()                // if set, runs during each call
}

func (p *provider) Name() string { return p.name }

func (p *provider) fail(err error) *provider {
	p.failure.Store(&err)
	return p
}

func (p *provider) Resolve(voice, model string) (string, string) {
	if voice == "" {
		voice = p.name + "-voice"
	}
	return voice, model
}

func (p *provider) Synthesize(ctx context.Context, u speech.Utterance) (speech.Sound, error) {
	p.calls.Add(1)
	if p.started != nil {
		p.started <- struct{}{}
	}
	if p.gate != nil {
		select {
		case <-p.gate:
		case <-ctx.Done():
			return speech.Sound{}, ctx.Err()
		}
	}
	if p.delay != nil {
		p.delay()
	}
	if strings.Contains(u.Text, "panic") {
		panic(u.Text)
	}
	if err := p.failure.Load(); err != nil && *err != nil {
		return speech.Sound{}, *err
	}
	s := speech.Sound{Rate: 8000, Samples: make([]int16, 100*len(u.Text))}
	for i := range s.Samples {
		s.Samples[i] = int16(i * len(p.name))
	}
	return s, nil
}

var errDown = errors.New("connection refused")

// synthesize requests speech for team t1.
func synthesize(t *testing.T, s *speech.Service, body string) speech.Response {
	t.Helper()
	r, err := s.Synthesize(t.Context(), "t1", []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// open returns the reader that plays the audio of a URL.
func (e *env) open(t *testing.T, s *speech.Service, url string) io.Reader {
	t.Helper()
	p, err := s.Open(t.Context(), "t1", url[len(speech.Route)+1:])
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	content, version, err := e.blobs.Get(t.Context(), p.Path)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return p.Verify(t.Context(), bytes.NewReader(content), version)
}

// play returns the audio of a URL.
func (e *env) play(t *testing.T, s *speech.Service, url string) []byte {
	t.Helper()
	sound, err := io.ReadAll(e.open(t, s, url))
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return sound
}

// hookedBlobs call before with each operation, and fail with its error.
type hookedBlobs struct {
	speech.BlobStore
	before func(operation, path string, content []byte) error
}

func (b *hookedBlobs) Get(ctx context.Context, path string) ([]byte, string, error) {
	if err := b.before("get", path, nil); err != nil {
		return nil, "", err
	}
	return b.BlobStore.Get(ctx, path)
}

func (b *hookedBlobs) Put(ctx context.Context, path string, content []byte) error {
	if err := b.before("put", path, content); err != nil {
		return err
	}
	return b.BlobStore.Put(ctx, path, content)
}

func (b *hookedBlobs) List(ctx context.Context, after string, limit int) ([]speech.BlobInfo, error) {
	if err := b.before("list", after, nil); err != nil {
		return nil, err
	}
	return b.BlobStore.List(ctx, after, limit)
}

func (b *hookedBlobs) DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (bool, error) {
	if err := b.before("delete", path, nil); err != nil {
		return false, err
	}
	return b.BlobStore.DeleteUnmodifiedSince(ctx, path, since)
}

func TestBlobsConform(t *testing.T) { speechtest.TestBlobStore(t, speechtest.NewBlobs(time.Now)) }

func TestLeasesConform(t *testing.T) {
	l := speechtest.NewLeases()
	speechtest.TestLeases(t, l, l, "lease")
}
