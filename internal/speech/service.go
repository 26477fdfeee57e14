package speech

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"telapi/callruntime/wire"
	"telapi/internal/endpoint"
)

// Route is where speech is asked for, and the path below which audio is read.
const Route = "/api/v1/runtime/speech"

// flightTime bounds the making of one sentence, whoever waits for it. It is less
// than a request may take to be answered.
const flightTime = 50 * time.Second

// Deps is what speech stands on.
type Deps struct {
	Store     Store
	Blobs     BlobStore // nil: there is no media service
	Leases    Leases
	Reporter  Reporter
	Endpoints interface {
		Get(ctx context.Context, teamID, id string) (endpoint.Endpoint, error)
	}
	Providers []Provider // in order of preference
	Retries   int        // of each
	Log       *slog.Logger
	Registry  prometheus.Registerer
	Now       func() time.Time
}

// Service speaks. It is safe for concurrent use.
type Service struct {
	Deps
	metrics metrics
	flights singleflight.Group
	failed  sync.Map      // when providers failed last, by their names
	awayTil atomic.Int64  // when the media service is tried again
	work    chan struct{} // held to resample and encode: more at a time than there are processors only take memory
}

// NewService returns a service.
func NewService(deps Deps) *Service {
	return &Service{Deps: deps, metrics: newMetrics(deps.Registry), work: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// Response is speech, by the URL of the cached audio or with the audio itself.
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

// rendering is a sentence in sound, as it came from the cache or was made.
type rendering struct {
	row    Recording
	audio  []byte
	stored bool
	made   bool // by a provider, and counted as billed
}

// Speak answers a request for speech of a team. Simultaneous requests for the
// same, on all instances, cost one synthesis: one of them is billed, the others
// count as cached. Neither a media service nor a key-value store that is away
// fails a request.
func (s *Service) Synthesize(ctx context.Context, teamID string, body []byte) (Response, error) {
	r, err := Parse(body, s.names())
	if err != nil {
		return Response{}, err
	}
	r.TeamID = teamID
	providers, err := s.chain(r.Provider)
	if err != nil {
		return Response{}, err
	}
	if r.EndpointID != "" {
		if _, err := s.Endpoints.Get(ctx, teamID, r.EndpointID); err != nil {
			return Response{}, err
		}
	}
	made, billed, err := s.render(ctx, r, providers)
	if err != nil {
		return Response{}, err
	}
	if !billed {
		s.count(ctx, r, made.row, true)
	}
	a := Response{
		Hash: made.row.Hash, Cached: !billed, Provider: made.row.Provider, Encoding: r.Encoding, SampleRate: r.SampleRate,
		Characters: r.Characters(), ExpiresAt: made.row.ExpiresAt,
	}
	if made.stored {
		a.URL = Route + "/" + made.row.Hash + "." + string(r.Encoding)
	} else {
		a.Audio, a.ExpiresAt = made.audio, time.Time{}
	}
	return a, nil
}

// render has the sentence made, or shares what another request of this instance
// is waiting for. Billed tells whether a synthesis was made for this request.
func (s *Service) render(ctx context.Context, r Request, providers []Provider) (made rendering, billed bool, err error) {
	if r.DisableCache {
		ctx, cancel := context.WithTimeout(ctx, flightTime)
		defer cancel()
		made, err := s.produce(ctx, r, providers, false)
		return made, true, err
	}
	led := false
	landed := s.flights.DoChan(BlobPath(s.row(r, providers[0]).Hash, r.Encoding), func() (_ any, err error) {
		led = true
		defer func() { // no handler's guard reaches here
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		// Whoever asked first may leave: the others still wait, and a
		// synthesis that is paid for is worth keeping.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTime)
		defer cancel()
		return s.obtain(ctx, r, providers)
	})
	select {
	case <-ctx.Done():
		return rendering{}, false, fmt.Errorf("wait for speech: %w", ctx.Err())
	case result := <-landed:
		if result.Err != nil {
			return rendering{}, false, result.Err
		}
		made := result.Val.(rendering)
		return made, led && made.made, nil
	}
}

// row is how a provider's rendering is kept.
func (s *Service) row(r Request, p Provider) Recording {
	u := r.Utterance
	u.Voice, u.Model = p.Resolve(u.Voice, u.Model)
	row := Recording{
		Hash: Key(r.TeamID, p.Name(), r.SampleRate, u), TeamID: r.TeamID, Sentence: u.Text,
		Provider: p.Name(), Voice: u.Voice, Model: u.Model, Speed: u.Speed, SampleRate: r.SampleRate,
		CreatedAt: s.Now().UTC(),
	}
	if r.TTL > 0 {
		row.ExpiresAt = row.CreatedAt.Add(r.TTL)
	}
	return row
}

// obtain finds the sentence in the cache, or makes and keeps it. While one
// instance makes it the others wait, and then take what it made, by whichever
// provider.
func (s *Service) obtain(ctx context.Context, r Request, providers []Provider) (rendering, error) {
	if !s.usable() {
		return s.produce(ctx, r, providers, false)
	}
	if found, ok, err := s.find(ctx, r, providers[:1]); ok || err != nil {
		return found, err
	}
	release, waited, err := s.Leases.Acquire(ctx, BlobPath(s.row(r, providers[0]).Hash, r.Encoding))
	if err != nil {
		s.Log.WarnContext(ctx, "speech is made without knowing whether another instance does", "error", err)
		return s.produce(ctx, r, providers, true)
	}
	defer release()
	perhaps := providers[:1] // made between the look and the lease
	if waited {
		perhaps = providers
	}
	if found, ok, err := s.find(ctx, r, perhaps); ok || err != nil {
		return found, err
	}
	return s.produce(ctx, r, providers, true)
}

// find looks for what any of the providers made.
func (s *Service) find(ctx context.Context, r Request, providers []Provider) (found rendering, ok bool, err error) {
	for _, p := range providers {
		if found, ok, err = s.recall(ctx, s.row(r, p), r.Encoding); ok || err != nil {
			break
		}
	}
	return found, ok, err
}

// produce has the first provider that can say it. What a fallback makes is kept
// under its own name, and may be there already.
func (s *Service) produce(ctx context.Context, r Request, providers []Provider, keep bool) (rendering, error) {
	var failures []error
	list := s.ready(providers)
	for i, p := range list {
		row := s.row(r, p)
		if keep && p != providers[0] {
			if found, ok, err := s.recall(ctx, row, r.Encoding); ok || err != nil {
				return found, err
			}
		}
		sound, err := s.synthesize(ctx, p, Utterance{row.Sentence, row.Voice, row.Model, row.Speed}, turn(ctx, len(list)-i))
		switch {
		case err != nil && errors.Is(ctx.Err(), context.Canceled):
			return rendering{}, err
		case err != nil:
			if failures = append(failures, err); ctx.Err() != nil { // no time is left: the others are not to blame
				return rendering{}, s.exhausted(failures)
			}
			continue
		}
		s.count(ctx, r, row, false)
		audio, err := s.encode(ctx, sound, r.SampleRate, r.Encoding)
		if err != nil {
			return rendering{}, err
		}
		made := rendering{row: s.row(r, p), audio: audio, made: true} // its time begins now
		if keep {
			s.metrics.cache.WithLabelValues("miss").Inc()
			s.keep(ctx, &made, r.Encoding)
		}
		return made, nil
	}
	return rendering{}, s.exhausted(failures)
}

// count takes one request down in the team's account.
func (s *Service) count(ctx context.Context, r Request, row Recording, cached bool) {
	s.Reporter.Record(ctx, wire.SpeechReport{
		TeamID: r.TeamID, EndpointID: r.EndpointID, Provider: row.Provider, Voice: row.Voice, Model: row.Model,
		Characters: int64(r.Characters()), Cached: cached, At: s.Now().UnixMilli(),
	})
}
