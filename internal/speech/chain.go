package speech

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"telapi/internal/audio"
	"telapi/internal/fault"
	"telapi/internal/sleep"
)

// Provider turns text into sound.
type Provider interface {
	Name() string
	// Resolve returns the voice and the model that are used where these are
	// asked for: its own in place of none, and of those it cannot have.
	Resolve(voice, model string) (string, string)
	// Synthesize says an utterance, resolved, within ctx. It gives up on a
	// service that is silent for too long, and fails rather than return what
	// is no sound. A failure that another attempt cannot mend wraps ErrRejected.
	Synthesize(ctx context.Context, u Utterance) (audio.Sound, error)
}

// ErrRejected marks the failure of a provider that is well but will not say this.
var ErrRejected = errors.New("the provider refuses this")

const (
	// pauseAfterFailure is how long a provider that failed is asked last, so
	// that callers do not all wait for one that is down.
	pauseAfterFailure = 10 * time.Second
	retryPause        = 100 * time.Millisecond // times the number of the attempt

	retryAllFailed = 5 * time.Second
	retryNoneThere = time.Minute
)

// names lists the providers in their order.
func (s *Service) names() []string {
	names := make([]string, len(s.Providers))
	for i, p := range s.Providers {
		names[i] = p.Name()
	}
	return names
}

// chain is the providers in the order of a request: the one it names first.
func (s *Service) chain(name string) ([]Provider, error) {
	if len(s.Providers) == 0 {
		return nil, fault.New(fault.ServiceUnavailable, "This server has no speech provider: its operator sets SPEECH_PROVIDERS.").WithRetryAfter(retryNoneThere)
	}
	first := max(0, slices.Index(s.names(), name))
	return slices.Concat(s.Providers[first:first+1], s.Providers[:first], s.Providers[first+1:]), nil
}

// ready puts those who failed a moment ago behind the others.
func (s *Service) ready(list []Provider) []Provider {
	rest := func(p Provider) int {
		if at, ok := s.failed.Load(p.Name()); ok && s.Now().Sub(at.(time.Time)) < pauseAfterFailure {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b Provider) int { return rest(a) - rest(b) })
}

// turn is until when a provider may be tried again, so that as much time is left
// for each of those after it.
func turn(ctx context.Context, providers int) time.Time {
	end, _ := ctx.Deadline()
	return time.Now().Add(time.Until(end) / time.Duration(providers))
}

// ProviderTimeout is how long one of some providers may be silent: as long as is wished,
// but no longer than leaves as much for each of the others.
func ProviderTimeout(wished time.Duration, providers int) time.Duration {
	return min(wished, flightTime/time.Duration(max(1, providers)))
}

// synthesize has one provider say something, again where that may help.
func (s *Service) synthesize(ctx context.Context, p Provider, u Utterance, until time.Time) (sound audio.Sound, err error) {
	for attempt := range s.Retries + 1 {
		if attempt > 0 {
			if time.Now().After(until) {
				break
			}
			s.Log.WarnContext(ctx, "a speech provider is tried again", "provider", p.Name(), "error", err)
			_ = sleep.For(ctx, retryPause*time.Duration(attempt))
		}
		start := s.Now()
		sound, err = p.Synthesize(ctx, u)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) { // whoever asked has left: no fault of the provider's
			return audio.Sound{}, fmt.Errorf("wait for speech: %w", ctx.Err())
		}
		if err == nil && (len(sound.Samples) == 0 || sound.Rate <= 0) {
			err = errors.New("it made no sound")
		}
		s.metrics.synthesis(p.Name(), err, s.Now().Sub(start))
		if err == nil || errors.Is(err, ErrRejected) || ctx.Err() != nil {
			break
		}
	}
	if err == nil || errors.Is(err, ErrRejected) {
		s.failed.Delete(p.Name())
	} else {
		s.failed.Store(p.Name(), s.Now())
	}
	if err != nil {
		return audio.Sound{}, fmt.Errorf("%s: %w", p.Name(), err)
	}
	return sound, nil
}

// exhausted is what a caller gets whom no provider could serve.
func (s *Service) exhausted(failures []error) error {
	cause := errors.Join(failures...)
	if !slices.ContainsFunc(failures, func(err error) bool { return !errors.Is(err, ErrRejected) }) {
		var issues fault.Issues
		issues.Add("/voice", fault.IssueValue, "No provider says this text with this voice and model.")
		return fault.From(issues.Err()).WithCause(cause)
	}
	return fault.New(fault.ServiceUnavailable, "No speech provider could say this right now (%s). Try again in a moment.", strings.Join(s.names(), ", ")).
		WithRetryAfter(retryAllFailed).WithCause(cause)
}
