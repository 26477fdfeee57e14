package speech

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/fault"
)

// Provider synthesizes speech. It is safe for concurrent use.
type Provider interface {
	Name() string
	// Resolve returns the voice and model that Synthesize uses for the given
	// ones. Empty and unsupported values become defaults.
	Resolve(voice, model string) (string, string)
	// Synthesize returns the sound of an utterance with a resolved voice and
	// model. It fails if its service stalls, or returns something other than
	// audio. An error that a retry cannot fix wraps ErrRejected or
	// ErrMisconfigured. A provider that asks for a pause returns a
	// *RateLimitError.
	Synthesize(ctx context.Context, u Utterance) (Sound, error)
}

// VoiceLister is a Provider that knows its voices.
type VoiceLister interface {
	// Voices returns all voices, sorted.
	Voices() []string
}

// ProviderInfo describes a configured provider.
type ProviderInfo struct {
	Name   string   `json:"name"`
	Voices []string `json:"voices,omitempty"` // empty: unknown
}

// ListProviders returns the providers in order of preference.
func (s *Service) ListProviders() []ProviderInfo {
	list := make([]ProviderInfo, len(s.Providers))
	for i, p := range s.Providers {
		list[i].Name = p.Name()
		if lister, ok := p.(VoiceLister); ok {
			list[i].Voices = lister.Voices()
		}
	}
	return list
}

// Errors of a Provider.
var (
	// ErrRejected marks the error of a working provider that rejects an utterance.
	ErrRejected = errors.New("rejected by the provider")
	// ErrMisconfigured marks the error of a provider that rejects its credentials.
	ErrMisconfigured = errors.New("credentials rejected by the provider")
)

// RateLimitError is the error of a provider that accepts no requests for a while.
type RateLimitError struct {
	RetryAfter time.Duration
	Err        error
}

func (e *RateLimitError) Error() string { return e.Err.Error() }

const (
	retryDelay = 100 * time.Millisecond // times the number of the attempt

	retryAfterFailure = 5 * time.Second
	retryAfterSetup   = time.Minute // the operator has to do something
)

func (s *Service) providerNames() []string {
	names := make([]string, len(s.Providers))
	for i, p := range s.Providers {
		names[i] = p.Name()
	}
	return names
}

// providersFor returns all providers, the one with the given name first, if any.
func (s *Service) providersFor(name string) ([]Provider, error) {
	if len(s.Providers) == 0 {
		return nil, fault.New(fault.ServiceUnavailable, "No speech provider configured. The operator must set SPEECH_PROVIDERS.").WithRetryAfter(retryAfterSetup)
	}
	first := max(0, slices.Index(s.providerNames(), name))
	return slices.Concat(s.Providers[first:first+1], s.Providers[:first], s.Providers[first+1:]), nil
}

// healthyFirst moves providers that have failed with the voice and model of the
// request to the end: with its text, or with several others.
func (s *Service) healthyFirst(r request, list []Provider) []Provider {
	var healthy, failed []Provider
	for _, p := range list {
		u := s.recording(r, p).Utterance
		if _, penalized := s.penalties.get(targetOf(r.TeamID, p, u), u.Text, s.Now()); penalized {
			failed = append(failed, p)
		} else {
			healthy = append(healthy, p)
		}
	}
	return append(healthy, failed...)
}

// ProviderTimeout returns how long one of several providers may stall: the
// configured time, limited to an equal share of the synthesis timeout.
func ProviderTimeout(configured time.Duration, providers int) time.Duration {
	return min(configured, synthesisTimeout/time.Duration(max(1, providers)))
}

// tryProvider calls one provider, with retries. The remaining providers, this one
// included, get an equal share of the time. Only the last one is waited for if it
// asks for a pause.
func (s *Service) tryProvider(ctx context.Context, teamID string, p Provider, u Utterance, remaining int) (sound Sound, err error) {
	end, _ := ctx.Deadline() // of run
	deadline := time.Now().Add(time.Until(end) / time.Duration(remaining))
	key := targetOf(teamID, p, u)
	err = s.penalties.rateLimit(key, u.Text, s.Now()) // of an earlier request: the first attempt waits as a retry does
	for attempt := range s.Retries + 1 {
		if err != nil {
			delay := retryDelay * time.Duration(attempt)
			limited, isLimit := errors.AsType[*RateLimitError](err)
			if isLimit {
				delay = limited.RetryAfter
			}
			if isLimit && remaining > 1 || time.Now().Add(delay).After(deadline) {
				break
			}
			s.Log.WarnContext(ctx, "retrying speech provider", "provider", p.Name(), "delay", delay, "error", err)
			_ = background.Sleep(ctx, delay)
		}
		sound, err = s.call(ctx, p, u)
		if err == nil || errors.Is(err, ErrRejected) || errors.Is(err, ErrMisconfigured) || ctx.Err() != nil {
			break
		}
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) { // not a failure of the provider
		return Sound{}, fmt.Errorf("wait for speech: %w", ctx.Err())
	}
	s.penalties.record(key, u.Text, err, s.Now())
	if err == nil {
		return sound, nil
	}
	level := slog.LevelWarn
	if errors.Is(err, ErrMisconfigured) {
		level = slog.LevelError
	}
	s.Log.Log(ctx, level, "speech provider failed", "provider", p.Name(), "voice", u.Voice, "model", u.Model, "error", err)
	return Sound{}, fmt.Errorf("%s: %w", p.Name(), err)
}

func (s *Service) call(ctx context.Context, p Provider, u Utterance) (Sound, error) {
	start := s.Now()
	sound, err := p.Synthesize(ctx, u)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return Sound{}, err
	}
	if err == nil && (len(sound.Samples) == 0 || sound.Rate <= 0) {
		err = errors.New("no audio returned")
	}
	s.metrics.syntheses.WithLabelValues(p.Name(), outcome(err)).Inc()
	s.metrics.seconds.WithLabelValues(p.Name()).Observe(s.Now().Sub(start).Seconds())
	return sound, err
}

// outcomes are the values of a metric's label.
var outcomes = []string{"ok", "rejected", "misconfigured", "rate_limited", "failed"}

func outcome(err error) string {
	_, limited := errors.AsType[*RateLimitError](err)
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrRejected):
		return "rejected"
	case errors.Is(err, ErrMisconfigured):
		return "misconfigured"
	case limited:
		return "rate_limited"
	default:
		return "failed"
	}
}

// allFailed returns the error for the client when no provider succeeded.
func (s *Service) allFailed(failures []error) error {
	all := func(kind error) bool {
		return !slices.ContainsFunc(failures, func(err error) bool { return !errors.Is(err, kind) })
	}
	cause := errors.Join(failures...)
	names := strings.Join(s.providerNames(), ", ")
	switch {
	case all(ErrRejected):
		var issues fault.Issues
		issues.Add("/voice", fault.IssueValue, "Every speech provider (%s) rejected this text with this voice and model. Use a voice that GET /api/v1/runtime/voices lists, or a shorter text.", names)
		return fault.From(issues.Err()).WithCause(cause)
	case all(ErrMisconfigured):
		return fault.New(fault.ServiceUnavailable, "The speech providers reject their credentials (%s). The operator must check them with telapi doctor.", names).
			WithRetryAfter(retryAfterSetup).WithCause(cause)
	}
	retryAfter := retryAfterFailure
	for _, err := range failures {
		if limited, ok := errors.AsType[*RateLimitError](err); ok {
			retryAfter = max(retryAfter, limited.RetryAfter)
		}
	}
	return fault.New(fault.ServiceUnavailable, "All speech providers failed (%s). Try again later.", names).
		WithRetryAfter(retryAfter).WithCause(cause)
}

type metrics struct {
	syntheses *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	cache     *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, providers []string) metrics {
	auto := promauto.With(registry)
	m := metrics{
		syntheses: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_syntheses_total", Help: "Synthesis attempts by provider and outcome: ok, rejected (text, voice or model), misconfigured (credentials rejected), rate_limited or failed."},
			[]string{"provider", "outcome"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_speech_synthesis_seconds", Help: "Duration of a synthesis attempt by provider.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"provider"}),
		cache: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_cache_total", Help: "Media cache lookups by result: hit, miss, transcoded (from PCM to A-law), bad_blob (missing or damaged) or away (media service unavailable)."},
			[]string{"result"}),
	}
	for _, p := range providers {
		for _, o := range outcomes {
			m.syntheses.WithLabelValues(p, o) // start at 0, so that alerts see the first increase
		}
	}
	return m
}
