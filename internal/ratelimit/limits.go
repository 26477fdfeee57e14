package ratelimit

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
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
	if !jsontext.Value(value).IsValid() {
		return Limits{}, fault.New(fault.MalformedJSON, "The limits are not one well-formed JSON value.")
	}
	limits := DefaultLimits()
	var is fault.Issues
	tiers := make(map[string]visit, len(Tiers))
	for _, name := range Tiers {
		limit := limits.Tier(name)
		tiers[string(name)] = object(&is, map[string]visit{
			"max":      integer(&is, &limit.Max, 1, maxLimit),
			"windowMs": integer(&is, &limit.WindowMs, minWindowMs, maxWindowMs),
		}, "max", "windowMs")
	}
	object(&is, map[string]visit{"tiers": object(&is, tiers)}, "tiers")("", value)
	if err := is.Err(); err != nil {
		return Limits{}, err
	}
	return limits, nil
}

// visit reads the value at a path and notes what is wrong with it.
type visit func(path string, value jsontext.Value)

func object(is *fault.Issues, known map[string]visit, required ...string) visit {
	return func(path string, value jsontext.Value) {
		var given map[string]jsontext.Value
		if value.Kind() != '{' || json.Unmarshal(value, &given) != nil {
			is.Add(path, fault.IssueType, "must be an object")
			return
		}
		for _, name := range required {
			if given[name] == nil {
				is.Add(fault.Pointer(path, name), fault.IssueRequired, "is missing")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if visit := known[name]; visit != nil {
				visit(fault.Pointer(path, name), given[name])
			} else {
				is.Add(fault.Pointer(path, name), fault.IssueUnknown, "is not known here; %s is allowed",
					strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			}
		}
	}
}

func integer(is *fault.Issues, into *int64, low, high int64) visit {
	return func(path string, value jsontext.Value) {
		switch {
		case value.Kind() != '0' || json.Unmarshal(value, into) != nil:
			is.Add(path, fault.IssueType, "must be an integer")
		case *into < low:
			is.Add(path, fault.IssueTooSmall, "must be at least %d", low)
		case *into > high:
			is.Add(path, fault.IssueTooLarge, "must be at most %d", high)
		}
	}
}
