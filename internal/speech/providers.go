package speech

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/audio"
	"telapi/internal/fault"
	"telapi/internal/sleep"
)

// Provider synthesizes speech. It is safe for concurrent use.
type Provider interface {
	Name() string
	// Resolve returns the voice and model that Synthesize uses for the given
	// ones. Empty and unsupported values become defaults.
	Resolve(voice, model string) (string, string)
	// Synthesize returns the sound of an utterance with a resolved voice and
	// model. It fails if its service stalls, or returns something other than
	// audio. An error that a retry cannot fix wraps ErrRejected.
	Synthesize(ctx context.Context, u Utterance) (audio.Sound, error)
}

// ErrRejected marks the error of a working provider that rejects an utterance.
var ErrRejected = errors.New("rejected by the provider")

const (
	// failureCooldown is how long a failed provider is tried last, so that
	// requests do not all wait for a provider that is down.
	failureCooldown = 10 * time.Second
	retryDelay      = 100 * time.Millisecond // times the number of the attempt

	retryAfterFailure    = 5 * time.Second
	retryAfterNoProvider = time.Minute
)

func (s *Service) providerNames() []string {
	names := make([]string, len(s.Providers))
	for i, p := range s.Providers {
		names[i] = p.Name()
	}
	return names
}

// providersFor returns all providers, the requested one first.
func (s *Service) providersFor(name string) ([]Provider, error) {
	if len(s.Providers) == 0 {
		return nil, fault.New(fault.ServiceUnavailable, "No speech provider configured. The operator must set SPEECH_PROVIDERS.").WithRetryAfter(retryAfterNoProvider)
	}
	first := max(0, slices.Index(s.providerNames(), name))
	return slices.Concat(s.Providers[first:first+1], s.Providers[:first], s.Providers[first+1:]), nil
}

// healthyFirst moves providers that failed within failureCooldown to the end.
func (s *Service) healthyFirst(list []Provider) []Provider {
	penalty := func(p Provider) int {
		if at, ok := s.failures.Load(p.Name()); ok && s.Now().Sub(at.(time.Time)) < failureCooldown {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b Provider) int { return penalty(a) - penalty(b) })
}

// retryDeadline returns the time after which the first of the remaining
// providers is not retried, so that each of them gets an equal share of the
// time.
func retryDeadline(ctx context.Context, remaining int) time.Time {
	end, _ := ctx.Deadline()
	return time.Now().Add(time.Until(end) / time.Duration(remaining))
}

// ProviderTimeout returns how long one of several providers may stall: the
// configured time, limited to an equal share of the synthesis timeout.
func ProviderTimeout(configured time.Duration, providers int) time.Duration {
	return min(configured, synthesisTimeout/time.Duration(max(1, providers)))
}

// tryProvider calls one provider, with retries until the deadline.
func (s *Service) tryProvider(ctx context.Context, p Provider, u Utterance, deadline time.Time) (sound audio.Sound, err error) {
	for attempt := range s.Retries + 1 {
		if attempt > 0 {
			if time.Now().After(deadline) {
				break
			}
			s.Log.WarnContext(ctx, "retrying speech provider", "provider", p.Name(), "error", err)
			_ = sleep.For(ctx, retryDelay*time.Duration(attempt))
		}
		start := s.Now()
		sound, err = p.Synthesize(ctx, u)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) { // not a failure of the provider
			return audio.Sound{}, fmt.Errorf("wait for speech: %w", ctx.Err())
		}
		if err == nil && (len(sound.Samples) == 0 || sound.Rate <= 0) {
			err = errors.New("no audio returned")
		}
		outcome := "ok"
		if errors.Is(err, ErrRejected) {
			outcome = "refused"
		} else if err != nil {
			outcome = "failed"
		}
		s.metrics.syntheses.WithLabelValues(p.Name(), outcome).Inc()
		s.metrics.seconds.WithLabelValues(p.Name()).Observe(s.Now().Sub(start).Seconds())
		if err == nil || errors.Is(err, ErrRejected) || ctx.Err() != nil {
			break
		}
	}
	if err == nil || errors.Is(err, ErrRejected) {
		s.failures.Delete(p.Name())
	} else {
		s.failures.Store(p.Name(), s.Now())
	}
	if err != nil {
		return audio.Sound{}, fmt.Errorf("%s: %w", p.Name(), err)
	}
	return sound, nil
}

// allFailed returns the error for the client when no provider succeeded.
func (s *Service) allFailed(failures []error) error {
	cause := errors.Join(failures...)
	if !slices.ContainsFunc(failures, func(err error) bool { return !errors.Is(err, ErrRejected) }) {
		var issues fault.Issues
		issues.Add("/voice", fault.IssueValue, "No speech provider accepts this text with this voice and model.")
		return fault.From(issues.Err()).WithCause(cause)
	}
	return fault.New(fault.ServiceUnavailable, "All speech providers failed (%s). Try again later.", strings.Join(s.providerNames(), ", ")).
		WithRetryAfter(retryAfterFailure).WithCause(cause)
}

type metrics struct {
	syntheses *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	cache     *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) metrics {
	auto := promauto.With(registry)
	return metrics{
		syntheses: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_syntheses_total", Help: "Synthesis attempts by provider and outcome: ok, refused or failed."},
			[]string{"provider", "outcome"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_speech_synthesis_seconds", Help: "Duration of a synthesis attempt by provider.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"provider"}),
		cache: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_cache_total", Help: "Media cache lookups by result: hit, miss, transcoded (from PCM to A-law), bad_blob (missing or damaged) or away (media service unavailable)."},
			[]string{"result"}),
	}
}
