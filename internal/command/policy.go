package command

import (
	"reflect"
	"slices"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Reasons to deny a command. They are part of the API.
const (
	UnknownAction       = "unknown_action"        // not a managed command
	PlatformDisabled    = "platform_disabled"     // disabled on this platform
	SourceNotAllowed    = "source_not_allowed"    // the profile does not allow the source
	TypeNotAllowed      = "type_not_allowed"      // the profile has no policy for the type
	TypeDisabled        = "type_disabled"         // the profile's policy disables the type
	FieldMissing        = "field_missing"         // a required field is missing
	TargetMissing       = "target_missing"        // no target given or configured
	TargetNotAllowed    = "target_not_allowed"    // not the configured target and no pattern matches
	ParameterNotAllowed = "parameter_not_allowed" // a URI parameter could change the destination
	HeaderNotAllowed    = "header_not_allowed"    // a header could change routing or identity
	ProviderNotInChain  = "provider_not_in_chain" // not a configured speech provider
)

// PlatformPolicy restricts all gateway profiles.
type PlatformPolicy struct {
	disabled   []string
	restricted bool // only targets are allowed, even if there are none
	targets    []Pattern
}

// NewPlatformPolicy returns a policy that disables command types and restricts
// transfers to targets, if there are any. The error lists all invalid values as
// /disabled/<n> and /targets/<n>.
func NewPlatformPolicy(disabled, targets []string) (PlatformPolicy, error) {
	var issues fault.Issues
	for i, t := range disabled {
		if !Known(t) {
			issues.Add(fault.Pointer("/disabled", i), fault.IssueValue, "Unknown command type %q.", t)
		}
	}
	checkPatterns(targets, "/targets", &issues)
	return PlatformPolicy{disabled, len(targets) > 0, parsePatterns(targets)}, issues.Err()
}

// parsePatterns skips invalid patterns, which match nothing.
func parsePatterns(list []string) []Pattern {
	var out []Pattern
	for _, s := range list {
		if p, err := ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Policy is a compiled gateway profile. It is safe for concurrent use.
type Policy struct {
	platform   PlatformPolicy
	profile    wire.GatewayProfile
	rules      map[string][]rule
	configured *Target // of transfers
}

// rule is an item of commandPolicies. If a type has several, all of them have to
// allow a command.
type rule struct {
	wire.CommandPolicy
	targets []Pattern
}

// NewPolicy compiles a gateway profile. Commands are denied unless the profile
// allows them; invalid parts of the profile allow nothing.
func NewPolicy(profile wire.GatewayProfile, platform PlatformPolicy) *Policy {
	p := &Policy{platform: platform, profile: profile, rules: map[string][]rule{}}
	for _, c := range profile.CommandPolicies {
		p.rules[c.Type] = append(p.rules[c.Type], rule{c, parsePatterns(c.AllowedTargets)})
	}
	if t := profile.Actions.Transfer; t != nil {
		if target, err := ParseTarget(t.Target); err == nil {
			p.configured = &target
		}
	}
	return p
}

// Decision is an allowed command with the defaults of the profile, or a denied
// command with the reason.
type Decision struct {
	Command wire.Command
	Apply   wire.Apply
	Reason  string // empty if allowed
}

// Decide checks a command against the profile and the platform policy. It does
// not modify the command. It adds the transaction ID to the SIP headers of an
// allowed command.
func (p *Policy) Decide(c wire.Command, source, transactionID string) Decision {
	c = clone(c)
	head := c.Head()
	head.Source = source
	head.RequireConfirmation, head.WaitForSilence = false, false // set by policies only
	if reason := p.deny(c); reason != "" {
		return Decision{Command: c, Reason: reason}
	}
	for _, r := range p.rules[head.Type] {
		head.RequireConfirmation = head.RequireConfirmation || r.RequireConfirmation
		head.WaitForSilence = head.WaitForSilence || r.WaitForSilence
	}
	if reason := p.complete(c, transactionID); reason != "" {
		return Decision{Command: c, Reason: reason}
	}
	return Decision{Command: c, Apply: specs[head.Type].Apply}
}

// clone returns a shallow copy. Decide replaces members and does not modify what
// they point to.
func clone(c wire.Command) wire.Command {
	copied := reflect.New(reflect.TypeOf(c).Elem())
	copied.Elem().Set(reflect.ValueOf(c).Elem())
	return copied.Interface().(wire.Command)
}

// deny returns the reason to deny a command regardless of its type, or "".
func (p *Policy) deny(c wire.Command) string {
	head := c.Head()
	spec := specs[head.Type]
	rules := p.rules[head.Type]
	switch {
	case spec == nil:
		return UnknownAction
	case slices.Contains(p.platform.disabled, head.Type):
		return PlatformDisabled
	case !slices.Contains(p.profile.CommandSources, head.Source):
		return SourceNotAllowed
	case len(rules) == 0:
		return TypeNotAllowed
	case slices.ContainsFunc(rules, func(r rule) bool { return !r.Enabled }):
		return TypeDisabled
	}
	for _, f := range spec.Fields {
		if f.Required && f.of(c).IsZero() {
			return FieldMissing
		}
	}
	return ""
}
