package speech

import (
	"errors"
	"maps"
	"slices"
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
	// It is also the number of teams after which the target is penalized for all teams.
	maxFailures = 3
)

// target is the unit of penalties. A voice or model that fails must not affect requests for
// others, nor one team the other teams.
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
	text     string   // that failed last; none of all teams
	failures int      // in a row, of different texts; of all teams: of different teams
	teams    []string // of all teams: the last ones that failed, at most maxFailures-1
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
	if limited, isLimit := errors.AsType[*RateLimitError](err); isLimit {
		p.byTarget[t.ofAllTeams()] = penalty{until: now.Add(limited.RetryAfter), err: err, failures: maxFailures}
		return
	}
	if errors.Is(err, ErrMisconfigured) {
		p.byTarget[t.ofAllTeams()] = penalty{until: now.Add(failureCooldown), err: err, failures: maxFailures}
		return
	}
	next := penalty{until: now.Add(failureCooldown), err: err, text: text, failures: p.byTarget[t].failures}
	if next.failures == 0 || text != p.byTarget[t].text { // the same text counts once
		next.failures++
	}
	p.byTarget[t] = next
	p.countTeam(t, err, now)
}

// countTeam penalizes a target for all teams after failures of maxFailures different teams:
// the provider is down, and the other teams need not find out by themselves. Afterwards,
// another team must fail to penalize it again, because one team alone must not affect others.
func (p *penalties) countTeam(t target, err error, now time.Time) {
	all := t.ofAllTeams()
	previous := p.byTarget[all]
	penalized := previous.failures >= maxFailures && now.Before(previous.until)
	if penalized || slices.Contains(previous.teams, t.team) {
		return
	}
	teams := append(slices.Clone(previous.teams), t.team)
	p.byTarget[all] = penalty{
		until: now.Add(failureCooldown), err: err, failures: len(teams),
		teams: teams[max(0, len(teams)-maxFailures+1):],
	}
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
