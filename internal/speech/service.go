package speech

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// Route is the path of requests for speech, and the prefix of audio URLs.
const Route = "/api/v1/runtime/speech"

// VoicesRoute is the route that lists providers and voices.
const VoicesRoute = "/api/v1/runtime/voices"

// synthesisTimeout bounds one synthesis with all its fallbacks. It is shorter
// than the timeout of a request.
const synthesisTimeout = 50 * time.Second

// The memory of audio that is being synthesized or read from the cache. A character is
// spoken in about a fifteenth of a second, which are 3 KB at 24 kHz. A text waits until
// others of its team have finished.
const (
	memoryBudget       = 64 << 20
	memoryPerCharacter = 4 << 10
)

// Deps are the dependencies and settings of a Service.
type Deps struct {
	Store  Store
	Blobs  BlobStore // nil: no media service is configured
	Leases Leases
	Usage  interface {
		Report(ctx context.Context, report wire.SpeechReport) // never fails the request
	}
	Endpoints interface {
		Endpoint(ctx context.Context, teamID, id string) (team.Endpoint, error)
	}
	Providers []Provider // in order of preference
	Retries   int        // per provider
	TeamShare int        // percentage of the memory for audio that a team may use
	Log       *slog.Logger
	Registry  prometheus.Registerer
	Now       func() time.Time
}

// Service synthesizes speech. It is safe for concurrent use. Close it before
// its stores.
type Service struct {
	Deps
	metrics      metrics
	penalties    penalties
	blobsRetryAt atomic.Int64      // when an unavailable media service is tried again, in Unix nanoseconds
	encoders     chan struct{}     // bounds concurrent encodings, so that other requests need not wait for a CPU
	memory       *ratelimit.Budget // bytes of audio

	flights singleflight.Group // shares one synthesis between identical requests
	tasks   *background.Group  // the syntheses of flights
}

// NewService returns a service.
func NewService(deps Deps) *Service {
	s := &Service{
		Deps: deps, penalties: penalties{byTarget: map[target]penalty{}}, tasks: background.NewGroup(),
		encoders: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1)),
		memory:   ratelimit.NewBudget(deps.Registry, "speech_bytes", "bytes for speech that is being synthesized", memoryBudget, deps.TeamShare),
	}
	s.metrics = newMetrics(deps.Registry, s.providerNames())
	return s
}

// Close cancels syntheses that continue after their clients have disconnected,
// and waits for them. No more can begin.
func (s *Service) Close() { s.tasks.Close() }

// Response is the result of a request: the URL of the cached audio, or the audio
// itself if it is not cached.
type Response struct {
	Hash       string    `json:"hash"`
	Cached     bool      `json:"cached"`
	Provider   string    `json:"provider"`
	Encoding   Encoding  `json:"encoding"`
	SampleRate int       `json:"sampleRate"`
	URL        string    `json:"url,omitzero"`
	Audio      []byte    `json:"audio,omitempty"`
	Characters int       `json:"characters"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`
}

// result is audio from the cache or from a provider.
type result struct {
	recording   Recording
	audio       []byte
	stored      bool // in the cache
	synthesized bool // and therefore billed
}

// Synthesize creates the speech that a team requests, or returns it from the
// cache. Concurrent identical requests on all instances share one synthesis: one
// is billed, the others count as cached. Requests succeed without the media
// service and without the key-value store.
func (s *Service) Synthesize(ctx context.Context, teamID string, body []byte) (Response, error) {
	r, err := parseRequest(body, s.providerNames())
	if err != nil {
		return Response{}, err
	}
	r.TeamID = teamID
	providers, err := s.providersFor(r.Provider)
	if err != nil {
		return Response{}, err
	}
	if r.EndpointID != "" {
		if _, err := s.Endpoints.Endpoint(ctx, teamID, r.EndpointID); err != nil {
			return Response{}, err
		}
	}
	found, billed, err := s.share(ctx, r, providers)
	if err != nil {
		return Response{}, err
	}
	rec := found.recording
	cached := !billed
	if cached {
		s.report(ctx, r, rec, cached)
	}
	response := Response{Hash: rec.Hash, Cached: cached, Provider: rec.Provider, Encoding: r.Encoding, SampleRate: r.SampleRate, Characters: r.Characters()}
	if found.stored {
		response.URL, response.ExpiresAt = Route+"/"+rec.Hash+"."+string(r.Encoding), rec.ExpiresAt
	} else {
		response.Audio = found.audio
	}
	return response, nil
}

// share runs a request, or waits for an identical request of this instance.
// Billed reports whether this request caused the synthesis. A synthesis continues
// when its client disconnects: others may wait for it, and paid audio is worth
// caching.
func (s *Service) share(ctx context.Context, r request, providers []Provider) (found result, billed bool, err error) {
	if r.DisableCache {
		found, err = s.run(ctx, r, providers)
		return found, true, err
	}
	first := false // of the identical requests
	flight := s.flights.DoChan(s.requestKey(r, providers), func() (any, error) {
		first = true
		return s.runInBackground(ctx, r, providers)
	})
	select {
	case <-ctx.Done():
		return result{}, false, fmt.Errorf("wait for speech: %w", ctx.Err())
	case shared := <-flight:
		if shared.Err != nil {
			return result{}, false, shared.Err
		}
		found = shared.Val.(result)
		return found, first && found.synthesized, nil
	}
}

// runInBackground runs a request until it is done or Close cancels it.
func (s *Service) runInBackground(ctx context.Context, r request, providers []Provider) (found result, err error) {
	done := make(chan struct{})
	closed := s.tasks.Go(ctx, func(ctx context.Context) {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		found, err = s.run(ctx, r, providers)
	})
	if closed != nil {
		return result{}, closed
	}
	<-done
	return found, err
}

// run waits until the team may use the memory for the audio of a request, and runs it.
func (s *Service) run(ctx context.Context, r request, providers []Provider) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, synthesisTimeout)
	defer cancel()
	size := min(int64(float64(r.Characters())*memoryPerCharacter/r.Speed), s.memory.Share())
	if err := s.memory.Wait(ctx, r.TeamID, size); err != nil {
		return result{}, err
	}
	defer s.memory.Return(r.TeamID, size)
	return s.findOrSynthesize(ctx, r, providers)
}

// requestKey identifies identical requests, on this instance and in leases.
func (s *Service) requestKey(r request, providers []Provider) string {
	return BlobPath(s.recording(r, providers[0]).Hash, r.Encoding)
}

// recording describes the result of a provider for a request.
func (s *Service) recording(r request, p Provider) Recording {
	u := r.Utterance
	u.Voice, u.Model = p.Resolve(u.Voice, u.Model)
	rec := Recording{
		Hash: Hash(r.TeamID, p.Name(), r.SampleRate, u), TeamID: r.TeamID, Provider: p.Name(), Utterance: u,
		SampleRate: r.SampleRate, CreatedAt: s.Now().UTC(),
	}
	rec.UsedAt = rec.CreatedAt
	if r.TTL > 0 {
		rec.ExpiresAt = rec.CreatedAt.Add(r.TTL)
	}
	return rec
}

// findOrSynthesize returns cached audio, or creates and caches it. Only one
// instance at a time creates it; the others wait and use its result, which may
// come from any of the providers.
func (s *Service) findOrSynthesize(ctx context.Context, r request, providers []Provider) (result, error) {
	r.DisableCache = r.DisableCache || !s.blobsUsable()
	if r.DisableCache {
		return s.synthesize(ctx, r, providers)
	}
	if found, ok, err := s.find(ctx, r, providers[:1]); ok || err != nil {
		return found, err
	}
	release, waited, err := s.Leases.Acquire(ctx, s.requestKey(r, providers))
	if err != nil {
		s.Log.WarnContext(ctx, "speech lease unavailable; another instance may synthesize the same text", "error", err)
		return s.synthesize(ctx, r, providers)
	}
	defer release()
	candidates := providers[:1] // another instance may have finished since the first lookup
	if waited {
		candidates = providers // it may have used a fallback
	}
	if found, ok, err := s.find(ctx, r, candidates); ok || err != nil {
		return found, err
	}
	return s.synthesize(ctx, r, providers)
}

func (s *Service) find(ctx context.Context, r request, providers []Provider) (found result, ok bool, err error) {
	for _, p := range providers {
		if found, ok, err = s.lookUp(ctx, s.recording(r, p).Hash, r.Encoding); ok || err != nil {
			break
		}
	}
	return found, ok, err
}

// synthesize uses the first provider that succeeds. Audio of a fallback is cached
// under the fallback's name and may exist already.
func (s *Service) synthesize(ctx context.Context, r request, providers []Provider) (result, error) {
	var failures []error
	for i, p := range s.healthyFirst(r, providers) {
		rec := s.recording(r, p)
		if isFallback := p != providers[0]; isFallback && !r.DisableCache {
			if found, ok, err := s.lookUp(ctx, rec.Hash, r.Encoding); ok || err != nil {
				return found, err
			}
		}
		sound, err := s.tryProvider(ctx, r.TeamID, p, rec.Utterance, len(providers)-i)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return result{}, err
		}
		if err != nil {
			failures = append(failures, err)
			if ctx.Err() != nil { // timed out: the remaining providers did not fail
				break
			}
			continue
		}
		s.report(ctx, r, rec, false) // billed, not cached
		audio, err := s.encode(ctx, sound, r.SampleRate, r.Encoding)
		if err != nil {
			return result{}, err
		}
		made := result{recording: s.recording(r, p), audio: audio, synthesized: true} // the TTL starts now
		if !r.DisableCache {
			s.metrics.cache.WithLabelValues("miss").Inc()
			s.save(ctx, &made, r.Encoding)
		}
		return made, nil
	}
	return result{}, s.allFailed(failures)
}

func (s *Service) report(ctx context.Context, r request, rec Recording, cached bool) {
	s.Usage.Report(ctx, wire.SpeechReport{
		TeamID: r.TeamID, EndpointID: r.EndpointID, Provider: rec.Provider, Voice: rec.Voice, Model: rec.Model,
		Characters: int64(r.Characters()), Cached: cached, At: s.Now().UnixMilli(),
	})
}
