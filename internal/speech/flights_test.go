package speech_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

func TestConcurrentRequestsShareOneSynthesis(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary", started: make(chan struct{}, 99), gate: make(chan struct{})}
	instances := []*speech.Service{e.service(t, p), e.service(t, p), e.service(t, p)}
	var wg sync.WaitGroup
	var notCached atomic.Int64
	for i := range 99 {
		wg.Go(func() {
			r, err := instances[i%3].Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
			if err != nil || r.URL == "" {
				t.Errorf("response %+v, %v; want a URL", r, err)
			}
			if !r.Cached {
				notCached.Add(1)
			}
		})
	}
	<-p.started
	close(p.gate)
	wg.Wait()
	reports, characters := e.reported()
	if p.calls.Load() != 1 || notCached.Load() != 1 || len(reports) != 99 || characters != 3 {
		t.Errorf("%d calls, %d responses not cached, %d reports, %d characters billed; want 1, 1, 99 and 3", p.calls.Load(), notCached.Load(), len(reports), characters)
	}
}

// request starts a request in the background.
func request(ctx context.Context, s *speech.Service, body string) (response chan speech.Response, failure chan error) {
	response, failure = make(chan speech.Response, 1), make(chan error, 1)
	go func() {
		r, err := s.Synthesize(ctx, "t1", []byte(body))
		response <- r
		failure <- err
	}()
	return response, failure
}

func TestSynthesisContinuesWhenFirstClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := newEnv(t), &provider{name: "primary", gate: make(chan struct{})}
		s := e.service(t, p)
		ctx, disconnect := context.WithCancel(t.Context())
		_, first := request(ctx, s, `{"text":"abc"}`)
		synctest.Wait()
		second, _ := request(t.Context(), s, `{"text":"abc"}`)
		synctest.Wait()
		disconnect()
		testkit.WantError(t, "first client", <-first, context.Canceled)
		close(p.gate)
		if r := <-second; !r.Cached || r.URL == "" || p.calls.Load() != 1 || e.billed() != 3 {
			t.Errorf("second client: %+v with %d calls, %d billed; want a cached response with 1 call, 3 billed", r, p.calls.Load(), e.billed())
		}
	})
}

func TestDisconnectedClientLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := newEnv(t), &provider{name: "primary", gate: make(chan struct{})}
		s := e.service(t, p)
		first, _ := request(t.Context(), s, `{"text":"abc"}`)
		synctest.Wait()
		goroutines, clients := runtime.NumGoroutine(), 100
		ctx, disconnect := context.WithCancel(t.Context())
		failures := make([]chan error, clients)
		for n := range failures {
			_, failures[n] = request(ctx, s, `{"text":"abc"}`)
		}
		synctest.Wait()
		disconnect()
		for _, failure := range failures {
			testkit.WantError(t, "client", <-failure, context.Canceled)
		}
		synctest.Wait()
		if left := runtime.NumGoroutine() - goroutines; left > clients/2 { // other tests may have some
			t.Errorf("%d clients have left %d goroutines, want none", clients, left)
		}
		close(p.gate)
		if r := <-first; r.Cached || p.calls.Load() != 1 {
			t.Errorf("first client: %+v with %d calls, want an uncached response with 1", r, p.calls.Load())
		}
	})
}

func TestDisconnectIsNotAProviderFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p, next := newEnv(t), &provider{name: "primary", gate: make(chan struct{})}, &provider{name: "next"}
		s := e.service(t, p, next)
		ctx, disconnect := context.WithCancel(t.Context())
		_, failure := request(ctx, s, `{"text":"abc","disableCache":true}`)
		synctest.Wait()
		disconnect()
		if err := <-failure; !errors.Is(err, context.Canceled) || next.calls.Load() != 0 || e.billed() != 0 {
			t.Errorf("error %v with %d calls of the next provider, %d billed; want context.Canceled with none", err, next.calls.Load(), e.billed())
		}
		families, err := s.Registry.(*prometheus.Registry).Gather()
		if err != nil || slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "telapi_speech_synthesis_seconds" }) {
			t.Errorf("a synthesis was counted: %v, %v", families, err)
		}
		close(p.gate)
		if r := synthesize(t, s, `{"text":"abc"}`); r.Provider != "primary" {
			t.Errorf("next request used %s, want primary", r.Provider)
		}
	})
}

func TestCloseCancelsAndAwaitsSyntheses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, mayReturn := newEnv(t), make(chan struct{})
		p := &provider{name: "primary", gate: make(chan struct{}), started: make(chan struct{}, 1)}
		s := e.service(t, slowToCancel{p, mayReturn})
		ctx, disconnect := context.WithCancel(t.Context())
		_, failure := request(ctx, s, `{"text":"abc"}`)
		<-p.started
		disconnect()
		testkit.WantError(t, "disconnected client", <-failure, context.Canceled)
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned before the synthesis")
		default:
		}
		close(mayReturn)
		<-closed
		if _, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"def"}`)); !errors.Is(err, background.ErrClosed) || p.calls.Load() != 1 {
			t.Errorf("request after Close: %v with %d calls, want ErrClosed with 1", err, p.calls.Load())
		}
	})
}

// slowToCancel is a provider that returns only after mayReturn is closed, even if
// its synthesis is cancelled.
type slowToCancel struct {
	*provider
	mayReturn chan struct{}
}

func (p slowToCancel) Synthesize(ctx context.Context, u speech.Utterance) (sound speech.Sound, err error) {
	sound, err = p.provider.Synthesize(ctx, u)
	<-p.mayReturn
	return sound, err
}

func TestRequestsSucceedDuringMediaOutage(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s, down := e.service(t, p), false
	s.Blobs = &hookedBlobs{e.blobs, func(string, string, []byte) error {
		if down {
			return speech.ErrBlobsUnavailable
		}
		return nil
	}}
	known := synthesize(t, s, `{"text":"known"}`)
	down = true
	for _, text := range []string{"known", "new", "known"} {
		if r := synthesize(t, s, `{"text":"`+text+`"}`); r.Cached || r.URL != "" || len(r.Audio) == 0 {
			t.Errorf("%q during the outage: %+v, want audio and no URL", text, r)
		}
	}
	playback, err := s.Open(t.Context(), "t1", known.Hash+".alaw")
	testkit.Must(t, err)
	if err := playback.Failed(t.Context(), speech.ErrBlobsUnavailable); !fault.Is(err, fault.ServiceUnavailable) || fault.From(err).RetryAfter == 0 {
		t.Errorf("play during the outage: %v, want SERVICE_UNAVAILABLE with Retry-After", err)
	}
	down = false
	e.advance(speech.BlobRetryDelay)
	if r := synthesize(t, s, `{"text":"known"}`); !r.Cached || r.URL == "" {
		t.Errorf("known text after the outage: %+v, want a cached response", r)
	}
	down = true
	synthesize(t, s, `{"text":"known"}`)
	down = false
	e.advance(-time.Hour)
	if r := synthesize(t, s, `{"text":"known"}`); !r.Cached || r.URL == "" {
		t.Errorf("known text after the clock was set back: %+v, want a cached response", r)
	}
	if r := synthesize(t, s, `{"text":"new"}`); r.Cached || r.URL == "" {
		t.Errorf("new text after the outage: %+v, want a synthesis that is cached", r)
	}
	withoutBlobs := e.service(t, p)
	withoutBlobs.Blobs = nil
	if r := synthesize(t, withoutBlobs, `{"text":"known"}`); r.Cached || len(r.Audio) == 0 {
		t.Errorf("without a media service: %+v, want audio", r)
	}
	testkit.WantFault(t, "play without a media service", testkit.ErrorOf(withoutBlobs.Open(t.Context(), "t1", known.Hash+".alaw")), fault.NotFound)
}

func TestCancelledRequestDoesNotSuspendMediaService(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Save(cancelled, p, make([]byte, 16)) {
		t.Error("saved with a cancelled context")
	}
	if r := synthesize(t, s, `{"text":"abc"}`); r.URL == "" {
		t.Errorf("the media service is suspended: %+v", r)
	}
}

func TestCachedSpeechIsServedWhileMediaServiceIsFull(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	synthesize(t, s, `{"text":"cached"}`)
	s.Blobs = &hookedBlobs{e.blobs, func(_, _ string, content []byte) error {
		if len(content) > 0 {
			return speech.ErrBlobRejected
		}
		return nil
	}}
	if r := synthesize(t, s, `{"text":"new"}`); r.URL != "" || len(r.Audio) == 0 {
		t.Errorf("new text: %+v, want audio and no URL", r)
	}
	if r := synthesize(t, s, `{"text":"cached"}`); !r.Cached || r.URL == "" || p.calls.Load() != 2 {
		t.Errorf("cached text: %+v with %d calls, want a cached response with 2", r, p.calls.Load())
	}
}
