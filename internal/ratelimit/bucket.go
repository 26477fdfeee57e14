package ratelimit

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"telapi/internal/fault"
)

// grantShare limits a grant to a fiftieth of the limit, so that an idle instance
// holds at most 2 % of it.
const grantShare = 50

// rule is the limit of a bucket. Two rules with equal limits but different versions
// are different: if limits were changed and changed back, the window in the store
// may have been changed in between.
type rule struct {
	version *Limits // as returned by Source; nil for quotas and handshakes
	max     int64
	window  time.Duration
}

// bucket holds this instance's permits for one client or team.
type bucket struct {
	users     atomic.Int64 // calls of Limiter.decide in progress; increases only while Limiter.mu is held
	mu        sync.Mutex
	rule      rule
	ends      time.Time     // end of the current window
	permits   int64         // granted and not used yet
	remaining int64         // in the store after the last grant
	batch     int64         // permits to request next, unless more callers wait
	waiting   int64         // callers that wait for a grant
	request   *grantRequest // in progress, or nil
}

// grantRequest is a request to the store for permits. Its result is ignored if it is not
// the bucket's request any more.
type grantRequest struct {
	done chan struct{} // closed when err is set
	err  error
}

// apply sets the rule. If it differs from the current one, apply discards the
// permits, the window and the grant.
func (b *bucket) apply(r rule) {
	if b.rule != r {
		b.rule, b.ends, b.request = r, time.Time{}, nil
	}
}

// take uses a permit or rejects the request, and sets the fields of d. It returns
// false if the bucket needs a grant first.
func (b *bucket) take(d *Decision, now time.Time) bool {
	if !now.Before(b.ends) {
		b.permits, b.remaining, b.batch = 0, 0, 1
	}
	switch {
	case b.permits > 0:
		b.permits--
		d.Allowed = true
	case b.remaining == 0 && now.Before(b.ends):
		// The limit is used up until the window ends: permits are never returned.
	default:
		return false
	}
	d.Remaining, d.Reset = b.remaining+b.permits, b.ends.Sub(now)
	return true
}

// maxGrant returns the maximum number of permits that this instance may hold.
func (b *bucket) maxGrant() int64 { return max(1, b.rule.max/grantShare) }

// want returns the number of permits to request: a batch, or one for each waiting caller if
// that is more. Batches start with one and double, so that an idle client holds no more
// permits than it has used.
func (b *bucket) want() int64 { return min(max(b.batch, b.waiting), b.maxGrant()) }

// add stores granted permits. The window counts from the time when the grant was
// requested, so that it never ends later here than in the store.
func (b *bucket) add(g Grant, requested time.Time) {
	b.permits, b.remaining = g.Permits, g.Remaining
	b.batch = min(2*b.batch, b.maxGrant())
	b.ends = requested.Add(g.Reset)
}

// isUnused reports whether the bucket has no users, no permits and no rejection to
// remember. The caller holds Limiter.mu.
func (b *bucket) isUnused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.users.Load() == 0 && b.permits == 0 && b.remaining > 0
}

// Names of policies, besides the tiers.
const (
	teamPolicy    = "team_daily_quota"
	sessionPolicy = "session_handshakes"
)

// Decision is the result of counting a request against a limit.
type Decision struct {
	Policy    string // a tier, teamPolicy or sessionPolicy
	Allowed   bool
	Limit     int64         // requests per window
	Remaining int64         // approximate: other instances may have permits
	Reset     time.Duration // until the window ends
	Window    time.Duration
}

// PolicyHeader returns the RateLimit-Policy header of
// draft-ietf-httpapi-ratelimit-headers.
func (d Decision) PolicyHeader() string {
	return fmt.Sprintf("%q;q=%d;w=%d", d.Policy, d.Limit, wholeSeconds(d.Window))
}

// Header returns the RateLimit header of draft-ietf-httpapi-ratelimit-headers.
func (d Decision) Header() string {
	return fmt.Sprintf("%q;r=%d;t=%d", d.Policy, d.Remaining, wholeSeconds(d.Reset))
}

// rejection is the JSON of details in the error of a rejected request.
type rejection struct {
	Limit   string `json:"limit"` // ip, team_daily_quota or session_handshakes
	Tier    string `json:"tier,omitempty"`
	Max     int64  `json:"max"`
	Window  int64  `json:"window"` // seconds
	ResetAt string `json:"resetAt"`
}

// Rejection returns the error for a request that is not allowed.
func (d Decision) Rejection() *fault.Error {
	wait := time.Duration(max(1, wholeSeconds(d.Reset))) * time.Second
	details := rejection{
		Limit:   d.Policy,
		Max:     d.Limit,
		Window:  wholeSeconds(d.Window),
		ResetAt: time.Now().Add(wait).UTC().Format(time.RFC3339),
	}
	var message string
	switch d.Policy {
	case teamPolicy:
		message = "Your team's daily quota is used up."
	case sessionPolicy:
		message = "The session has opened too many connections."
	default:
		details.Limit, details.Tier = "ip", d.Policy
		message = "Too many requests from your address."
	}
	return fault.New(fault.RateLimitExceeded, "%s Try again in %d seconds.", message, wholeSeconds(wait)).
		WithDetails(details).WithRetryAfter(wait)
}

// wholeSeconds rounds up, so that a client does not retry too early.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
