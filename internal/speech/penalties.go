package speech

import (
	"errors"
	"maps"
	"sync"
	"time"
)

const (
	// failureCooldown is how long a failed provider is tried last, so that requests
	// do not all wait for a provider that is down.
	failureCooldown = 10 * time.Second
	// failureMemory is how long after the end of its penalty a failure still counts as the
	// one before the next.
	failureMemory = time.Minute
	// maxFailures is the number of failures in a row, each with another text than the one
	// before, after which a target is penalized for all texts: a single text may be the cause.
	maxFailures = 3
)

// target is the unit of penalties. A voice or model that fails must not affect requests for
// others, nor the texts of a team those of other teams.
type target struct{ team, provider, voice, model string }

func targetOf(team string, p Provider, u Utterance) target {
	return target{team, p.Name(), u.Voice, u.Model}
}

// ofAllTeams returns the target of failures that no text has caused.
func (t target) ofAllTeams() target {
	t.team = ""
	return t
}

// penalties holds the last failures. It is safe for concurrent use.
type penalties struct {
	mu       sync.Mutex
	byTarget map[target]penalty
}

// penalty applies to all texts after maxFailures, and only to its own text before.
type penalty struct {
	until    time.Time
	err      error
	text     string // that failed last
	failures int    // in a row, of different texts
}

// get returns the last failure of a target, if its penalty applies to a text.
func (p *penalties) get(t target, text string, now time.Time) (penalty, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range []target{t.ofAllTeams(), t} {
		found := p.byTarget[t]
		if now.Before(found.until) && (found.text == text || found.failures >= maxFailures) {
			return found, true
		}
	}
	return penalty{}, false
}

// record records the outcome of a request. A text that the provider has rejected shows that
// the provider works. Old failures are removed, because requests choose the voices and the map
// would grow without bound.
func (p *penalties) record(t target, text string, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byTarget, func(_ target, old penalty) bool { return !now.Before(old.until.Add(failureMemory)) })
	if err == nil || errors.Is(err, ErrRejected) {
		delete(p.byTarget, t)
		delete(p.byTarget, t.ofAllTeams())
		return
	}
	previous := p.byTarget[t]
	next := penalty{now.Add(failureCooldown), err, text, previous.failures}
	limited, isLimit := errors.AsType[*RateLimitError](err)
	switch {
	case isLimit:
		t, next.until, next.failures = t.ofAllTeams(), now.Add(limited.RetryAfter), maxFailures
	case errors.Is(err, ErrMisconfigured):
		t, next.failures = t.ofAllTeams(), maxFailures
	case previous.failures == 0 || text != previous.text: // the same text counts once
		next.failures++
	}
	p.byTarget[t] = next
}

// rateLimit returns a *RateLimitError with the rest of the time for which the
// provider has asked, or nil.
func (p *penalties) rateLimit(t target, text string, now time.Time) error {
	found, ok := p.get(t, text, now)
	limited, isLimit := errors.AsType[*RateLimitError](found.err)
	if !ok || !isLimit {
		return nil
	}
	return &RateLimitError{found.until.Sub(now), limited.Err}
}
