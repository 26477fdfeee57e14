package speech

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/internal/audio"
	"telapi/internal/fault"
	"telapi/internal/pause"
)

// Provider turns text into sound.
type Provider interface {
	Name() string
	// Resolve returns the voice and the model that are used where these are
	// asked for: its own in place of none, and of those it cannot have.
	Resolve(voice, model string) (string, string)
	// Synthesize says an utterance, resolved, within ctx. It gives up on a
	// service that is silent for too long, and fails rather than return what
	// is no sound. A failure that another attempt cannot mend wraps ErrRefused.
	Synthesize(ctx context.Context, u Utterance) (audio.Sound, error)
}

// ErrRefused marks the failure of a provider that is well but will not say this.
var ErrRefused = errors.New("the provider refuses this")

const (
	// pauseAfterFailure is how long a provider that failed is asked last, so
	// that callers do not all wait for one that is down.
	pauseAfterFailure = 10 * time.Second
	retryPause        = 100 * time.Millisecond // times the number of the attempt

	retryAllFailed = 5 * time.Second
	retryNoneThere = time.Minute
)

// chain is the providers in order of preference.
type chain struct {
	providers []Provider
	retries   int // of each, before the next one's turn
	log       *slog.Logger
	metrics   metrics
	now       func() time.Time

	mu     sync.Mutex
	failed map[string]time.Time
}

// names lists the providers in their order.
func (c *chain) names() []string {
	names := make([]string, len(c.providers))
	for i, p := range c.providers {
		names[i] = p.Name()
	}
	return names
}

// from returns the chain as it is for a request: the provider it names first.
func (c *chain) from(name string) ([]Provider, error) {
	if len(c.providers) == 0 {
		return nil, fault.New(fault.ServiceUnavailable, "This server has no speech provider: its operator sets SPEECH_PROVIDERS.").After(retryNoneThere)
	}
	first := max(0, slices.IndexFunc(c.providers, func(p Provider) bool { return p.Name() == name }))
	return slices.Concat(c.providers[first:first+1], c.providers[:first], c.providers[first+1:]), nil
}

// ready puts those who failed a moment ago behind the others.
func (c *chain) ready(list []Provider) []Provider {
	c.mu.Lock()
	defer c.mu.Unlock()
	recently := func(p Provider) bool {
		at, ok := c.failed[p.Name()]
		return ok && c.now().Sub(at) < pauseAfterFailure
	}
	good := slices.DeleteFunc(slices.Clone(list), recently)
	bad := slices.DeleteFunc(slices.Clone(list), func(p Provider) bool { return !recently(p) })
	return append(good, bad...)
}

func (c *chain) note(p Provider, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.failed, p.Name()); failed {
		c.failed[p.Name()] = c.now()
	}
}

// synthesize has one provider say something, again where that may help.
func (c *chain) synthesize(ctx context.Context, p Provider, u Utterance) (sound audio.Sound, err error) {
	for attempt := range c.retries + 1 {
		if attempt > 0 {
			c.log.WarnContext(ctx, "a speech provider is tried again", "provider", p.Name(), "error", err)
			_ = pause.For(ctx, retryPause*time.Duration(attempt))
		}
		start := c.now()
		sound, err = p.Synthesize(ctx, u)
		if err == nil && (len(sound.Samples) == 0 || sound.Rate <= 0) {
			err = errors.New("it made no sound")
		}
		c.metrics.synthesis(p.Name(), err, c.now().Sub(start))
		if err == nil || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			break
		}
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) { // whoever asked has left: no fault of the provider's
		return audio.Sound{}, fmt.Errorf("wait for speech: %w", ctx.Err())
	}
	c.note(p, err != nil && !errors.Is(err, ErrRefused))
	if err != nil {
		return audio.Sound{}, fmt.Errorf("%s: %w", p.Name(), err)
	}
	return sound, nil
}

// exhausted is what a caller gets whom no provider could serve.
func (c *chain) exhausted(failures []error) error {
	cause := errors.Join(failures...)
	if !slices.ContainsFunc(failures, func(err error) bool { return !errors.Is(err, ErrRefused) }) {
		var issues fault.Issues
		issues.Add("/voice", fault.IssueValue, "No provider says this text with this voice and model.")
		return fault.From(issues.Err()).Because(cause)
	}
	return fault.New(fault.ServiceUnavailable, "No speech provider could say this right now (%s). Try again in a moment.", strings.Join(c.names(), ", ")).
		After(retryAllFailed).Because(cause)
}
