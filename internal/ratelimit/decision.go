package ratelimit

import (
	"strconv"
	"time"

	"telapi/internal/fault"
)

// teamPolicy is the policy name of a team's daily quota.
const teamPolicy = "team_daily_quota"

// Decision is the result of counting a request against a limit.
type Decision struct {
	Policy    string // a tier, or team_daily_quota
	Allowed   bool
	Limit     int64         // requests per window
	Remaining int64         // approximate: other instances may hold leases
	Reset     time.Duration // until the window ends
	Window    time.Duration
}

// PolicyHeader returns the RateLimit-Policy header of
// draft-ietf-httpapi-ratelimit-headers.
func (d Decision) PolicyHeader() string {
	return `"` + d.Policy + `";q=` + strconv.FormatInt(d.Limit, 10) + ";w=" + strconv.FormatInt(wholeSeconds(d.Window), 10)
}

// Header returns the RateLimit header of the same draft.
func (d Decision) Header() string {
	return `"` + d.Policy + `";r=` + strconv.FormatInt(d.Remaining, 10) + ";t=" + strconv.FormatInt(wholeSeconds(d.Reset), 10)
}

// refusal is the details of a refused request's error.
type refusal struct {
	Limit   string `json:"limit"`
	Tier    string `json:"tier,omitempty"`
	Max     int64  `json:"max"`
	Window  int64  `json:"window"` // seconds
	ResetAt string `json:"resetAt"`
}

// Refusal returns the error for a request that is not allowed.
func (d Decision) Refusal() *fault.Error {
	wait := time.Duration(max(1, wholeSeconds(d.Reset))) * time.Second
	details := refusal{
		Limit:   "ip",
		Tier:    d.Policy,
		Max:     d.Limit,
		Window:  wholeSeconds(d.Window),
		ResetAt: time.Now().Add(wait).UTC().Format(time.RFC3339),
	}
	message := "Too many requests from your address."
	if d.Policy == teamPolicy {
		details.Limit, details.Tier = teamPolicy, ""
		message = "Your team's daily quota is used up."
	}
	return fault.New(fault.RateLimitExceeded, "%s Try again in %d seconds.", message, wholeSeconds(wait)).
		WithDetails(details).WithRetryAfter(wait)
}

// wholeSeconds rounds up, so that a client does not retry too early.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
