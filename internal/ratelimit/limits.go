package ratelimit

import (
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Tier names one family of routes that shares a limit per client address.
type Tier string

// The tiers. Auth counts socket handshakes and refused credentials.
const (
	API     Tier = "api"
	Webhook Tier = "webhook"
	Auth    Tier = "auth"
)

// Tiers lists them all.
var Tiers = []Tier{API, Webhook, Auth}

// Bounds of a Limit.
const (
	maxLimit    = 1_000_000_000
	minWindowMs = 1_000
	maxWindowMs = 86_400_000
)

// Limit allows Max requests per window.
type Limit struct {
	Max      int64 `json:"max"`
	WindowMs int64 `json:"windowMs"`
}

// Window is the length of the limit's window.
func (l Limit) Window() time.Duration { return time.Duration(l.WindowMs) * time.Millisecond }

// Limits is the value that administrators save. It is comparable.
type Limits struct {
	Tiers struct {
		API     Limit `json:"api"`
		Webhook Limit `json:"webhook"`
		Auth    Limit `json:"auth"`
	} `json:"tiers"`
}

// DefaultLimits hold until an administrator saves others.
func DefaultLimits() Limits {
	const minute = 60_000
	var l Limits
	l.Tiers.API = Limit{600, minute}
	l.Tiers.Webhook = Limit{6000, minute}
	l.Tiers.Auth = Limit{600, minute}
	return l
}

// Tier points to a tier's limit; nil for a name that is no tier.
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

// With returns limits that differ in one tier. They are not checked yet.
func (l Limits) With(name Tier, limit Limit) (Limits, error) {
	tier := l.Tier(name)
	if tier == nil {
		return l, fault.New(fault.Validation, "There is no tier %q; there are %v.", name, Tiers)
	}
	*tier = limit
	return l, nil
}

// JSON is the form in which the value is stored.
func (l Limits) JSON() []byte {
	value, err := json.Marshal(l)
	if err != nil {
		panic("ratelimit: limits do not marshal: " + err.Error()) // integers only: cannot fail
	}
	return value
}

// Validate reports every value that is out of bounds.
func (l Limits) Validate() error {
	_, err := ParseLimits(l.JSON())
	return err
}

// ParseLimits reads a stored value. It comes from outside (the console writes
// it too), so it is taken whole or not at all: everything wrong with it is
// reported at once, and unknown members are refused because a misspelt one would
// silently leave a default in force. A tier that is left out has its default.
func ParseLimits(value []byte) (Limits, error) {
	type members map[string]jsontext.Value
	var in struct {
		Tiers map[string]struct {
			Max      *int64  `json:"max"`
			WindowMs *int64  `json:"windowMs"`
			Others   members `json:",embed"`
		} `json:"tiers"`
		Others members `json:",embed"`
	}
	var issues fault.Issues
	if err := strictjson.Decode(value, &in, "", &issues); err != nil {
		return Limits{}, err
	}
	unknown := func(path, name, known string) {
		issues.Add(fault.Pointer(path, name), fault.IssueUnknown, "This is not known here; there is %s.", known)
	}
	number := func(into, given *int64, path string, least, most int64) {
		if given == nil {
			issues.Missing(path, "This is missing.")
			return
		}
		*into = *given
		fault.CheckRange(&issues, path, *given, least, most)
	}
	if in.Tiers == nil {
		issues.Missing("/tiers", "This is missing.")
	}
	for _, name := range slices.Sorted(maps.Keys(in.Others)) {
		unknown("", name, "tiers")
	}
	limits := DefaultLimits()
	for _, name := range slices.Sorted(maps.Keys(in.Tiers)) {
		limit, given, path := limits.Tier(Tier(name)), in.Tiers[name], fault.Pointer("/tiers", name)
		if limit == nil {
			unknown("/tiers", name, fault.Join(Tiers))
			continue
		}
		number(&limit.Max, given.Max, path+"/max", 1, maxLimit)
		number(&limit.WindowMs, given.WindowMs, path+"/windowMs", minWindowMs, maxWindowMs)
		for _, name := range slices.Sorted(maps.Keys(given.Others)) {
			unknown(path, name, "max, windowMs")
		}
	}
	if err := issues.Err(); err != nil {
		return Limits{}, err
	}
	return limits, nil
}
