// Package ratelimit protects the server: it limits requests per client address
// and tier, and per team and day. The counts are in the key-value store, which
// all instances share. Budgets divide what one instance has among teams.
package ratelimit

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Grant is what the store has granted.
type Grant struct {
	Permits   int64         // granted; 0 if the limit is used up
	Remaining int64         // left in the window for all instances
	Reset     time.Duration // until the window ends
}

// Counter counts permits in windows. Grant is atomic: all instances together never
// get more than limit permits per window. A window starts with its first permit. If
// the current window is longer than requested, Grant shortens it. Grant has a
// timeout of its own.
type Counter interface {
	Grant(ctx context.Context, key string, want, limit int64, window time.Duration) (Grant, error)
}

// LimitsStore holds the administrator's limits as one JSON value.
type LimitsStore interface {
	// Limits returns the saved value. ok is false if there is none.
	Limits(ctx context.Context) (value []byte, ok bool, err error)
	// SaveLimits replaces the value old by value and announces it to all
	// instances. An old of nil means that there is no value yet. It returns false
	// and changes nothing if another value is stored.
	SaveLimits(ctx context.Context, old, value []byte) (bool, error)
}

// Mirror holds a copy of the limits that survives the loss of the key-value
// store.
type Mirror interface {
	Setting(ctx context.Context, name string) (value []byte, ok bool, err error)
	SaveSetting(ctx context.Context, name string, value []byte) error
	// ChangeSetting stores a value and an audit entry in one transaction, which it
	// commits if confirm succeeds.
	ChangeSetting(ctx context.Context, name string, value []byte, e audit.Entry, confirm func(context.Context) error) error
}

// Tier is a group of routes that share a limit per client address.
type Tier string

// The tiers. Auth counts WebSocket handshakes and rejected credentials.
const (
	API     Tier = "api"
	Webhook Tier = "webhook"
	Auth    Tier = "auth"
)

// Tiers lists all tiers.
var Tiers = []Tier{API, Webhook, Auth}

// Bounds of a Limit.
const (
	MinWindow = time.Second
	MaxWindow = 24 * time.Hour

	maxLimit = 1_000_000_000
)

// Limit allows Max requests per window.
type Limit struct {
	Max      int64 `json:"max"`
	WindowMs int64 `json:"windowMs"`
}

// Window returns the length of the window.
func (l Limit) Window() time.Duration { return time.Duration(l.WindowMs) * time.Millisecond }

// Limits are the limits of all tiers.
type Limits struct {
	Tiers struct {
		API     Limit `json:"api"`
		Webhook Limit `json:"webhook"`
		Auth    Limit `json:"auth"`
	} `json:"tiers"`
}

// DefaultLimits returns the limits before an administrator changes them.
func DefaultLimits() Limits {
	const minute = 60_000
	var l Limits
	l.Tiers.API = Limit{600, minute}
	l.Tiers.Webhook = Limit{6000, minute}
	l.Tiers.Auth = Limit{600, minute}
	return l
}

// Tier returns a tier's limit, or nil for an unknown tier.
func (l *Limits) Tier(name Tier) *Limit {
	switch name {
	case API:
		return &l.Tiers.API
	case Webhook:
		return &l.Tiers.Webhook
	case Auth:
		return &l.Tiers.Auth
	}
	return nil
}

// JSON returns the stored form of the limits.
func (l Limits) JSON() []byte {
	value, _ := json.Marshal(l) // cannot fail: integers only
	return value
}

// ParseLimits parses a stored value, which the console may have written. It
// reports all issues at once. It rejects unknown members, because a misspelled
// one would be ignored and its default would apply. A missing tier has its default.
func ParseLimits(value []byte) (Limits, error) {
	type limitBody struct {
		Max      *int64 `json:"max"`
		WindowMs *int64 `json:"windowMs"`
	}
	var in struct {
		Tiers *struct {
			API     *limitBody `json:"api"`
			Webhook *limitBody `json:"webhook"`
			Auth    *limitBody `json:"auth"`
		} `json:"tiers"`
	}
	var issues fault.Issues
	if err := strictjson.Decode(value, &in, "", &issues); err != nil {
		return Limits{}, err
	}
	for _, unknown := range strictjson.UnknownMembers(value, in, nil) {
		issues.Add(unknown.Path, fault.IssueUnknown, "%s", unknown.Message)
	}
	if in.Tiers == nil {
		issues.Missing("/tiers", "This member is required.")
		return Limits{}, issues.Err()
	}
	number := func(into, given *int64, path string, lowest, highest int64) {
		if given == nil {
			issues.Missing(path, "This member is required.")
			return
		}
		*into = *given
		fault.CheckRange(&issues, path, *given, lowest, highest)
	}
	limits := DefaultLimits()
	parse := func(tier Tier, given *limitBody) {
		if given != nil {
			limit, path := limits.Tier(tier), "/tiers/"+string(tier)
			number(&limit.Max, given.Max, path+"/max", 1, maxLimit)
			number(&limit.WindowMs, given.WindowMs, path+"/windowMs", MinWindow.Milliseconds(), MaxWindow.Milliseconds())
		}
	}
	parse(API, in.Tiers.API)
	parse(Webhook, in.Tiers.Webhook)
	parse(Auth, in.Tiers.Auth)
	return limits, issues.Err()
}
