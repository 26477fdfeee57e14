package speech

import (
	"errors"
	"maps"
	"sync"
	"time"
)

// failureCooldown is how long a failed provider is tried last, so that requests do
// not all wait for a provider that is down.
const failureCooldown = 10 * time.Second

// target is what a failure is attributed to. A voice or model that fails for one
// team must not take the provider from teams that use others.
type target struct{ provider, voice, model string }

func targetOf(p Provider, u Utterance) target { return target{p.Name(), u.Voice, u.Model} }

// penalties holds the last failures. It is safe for concurrent use.
type penalties struct {
	mu   sync.Mutex
	list map[target]penalty
}

type penalty struct {
	until time.Time
	err   error
}

// get returns the failure of a target whose penalty has not ended.
func (p *penalties) get(t target, now time.Time) (penalty, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.list[t]
	return found, now.Before(found.until)
}

// set records the outcome of a request. Requests choose the voices, so ended
// penalties are removed.
func (p *penalties) set(t target, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.list, func(_ target, old penalty) bool { return !now.Before(old.until) })
	if err == nil || errors.Is(err, ErrRejected) {
		delete(p.list, t)
		return
	}
	cooldown := failureCooldown
	if limited, ok := errors.AsType[*RateLimitError](err); ok {
		cooldown = limited.RetryAfter
	}
	p.list[t] = penalty{now.Add(cooldown), err}
}

// rateLimit returns a *RateLimitError with the rest of the time for which the
// provider has asked, or nil.
func (p *penalties) rateLimit(t target, now time.Time) error {
	found, ok := p.get(t, now)
	limited, isLimit := errors.AsType[*RateLimitError](found.err)
	if !ok || !isLimit {
		return nil
	}
	return &RateLimitError{found.until.Sub(now), limited.Err}
}
