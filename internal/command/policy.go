package command

import (
	"reflect"
	"slices"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Reasons for a denial. They are part of the interface.
const (
	UnknownAction       = "unknown_action"        // no managed command
	PlatformDisabled    = "platform_disabled"     // switched off for all flows
	SourceNotAllowed    = "source_not_allowed"    // the flow takes no commands from there
	TypeNotAllowed      = "type_not_allowed"      // the flow has no policy for it
	TypeDisabled        = "type_disabled"         // the flow's policy switches it off
	FieldMissing        = "field_missing"         // it does not say what to do
	TargetMissing       = "target_missing"        // neither given nor configured
	TargetNotAllowed    = "target_not_allowed"    // neither configured nor permitted
	ParameterNotAllowed = "parameter_not_allowed" // the target's URI says more than where
	HeaderNotAllowed    = "header_not_allowed"    // it would steer routing or identity
	ProviderNotInChain  = "provider_not_in_chain" // not one of the flow's speech providers
)

// PlatformPolicy is what stands over all flows.
type PlatformPolicy struct {
	disabled   []string
	restricted bool // targets is all there is, even when it is empty
	targets    []Pattern
}

// NewPlatformPolicy takes the command types that no flow may use and the targets that
// transfers may go to at all; no targets: any. Everything wrong is reported, at
// /disabled/<n> and /targets/<n>.
func NewPlatformPolicy(disabled, targets []string) (PlatformPolicy, error) {
	var issues fault.Issues
	for i, t := range disabled {
		if !Known(t) {
			issues.Add(fault.Pointer("/disabled", i), fault.IssueValue, "There is no command type %q.", t)
		}
	}
	checkPatterns(targets, "/targets", &issues)
	return PlatformPolicy{disabled, len(targets) > 0, patterns(targets)}, issues.Err()
}

// patterns leaves out what is no pattern: it permits nothing.
func patterns(list []string) []Pattern {
	var out []Pattern
	for _, s := range list {
		if p, err := ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Policy decides on commands for one flow. It is safe for concurrent use.
type Policy struct {
	platform   PlatformPolicy
	profile    wire.GatewayProfile
	rules      map[string][]rule
	configured *Target
}

// rule is one entry of commandPolicies. Where a type has several, all of them
// have to permit a command.
type rule struct {
	wire.CommandPolicy
	targets []Pattern
}

// NewPolicy prepares a flow's profile for deciding. What the profile does not
// permit is denied, so a part that makes no sense permits nothing.
func NewPolicy(profile wire.GatewayProfile, platform PlatformPolicy) *Policy {
	p := &Policy{platform: platform, profile: profile, rules: map[string][]rule{}}
	for _, c := range profile.CommandPolicies {
		p.rules[c.Type] = append(p.rules[c.Type], rule{c, patterns(c.AllowedTargets)})
	}
	if t := profile.Actions.Transfer; t != nil {
		if target, err := ParseTarget(t.Target); err == nil {
			p.configured = &target
		}
	}
	return p
}

// Decision is what became of a command: the command as it is to be carried out,
// with the flow's defaults, or the reason why not.
type Decision struct {
	Command wire.Command
	Apply   wire.Apply
	Reason  string // empty: allowed
}

// Decide holds a command from a source against the flow and the platform. The
// given command is left as it is; a transaction id is added to the SIP headers
// of what is allowed.
func (p *Policy) Decide(c wire.Command, source, transactionID string) Decision {
	c = clone(c)
	head := c.Head()
	head.Source = source
	head.RequireConfirmation, head.WaitForSilence = false, false // not the provider's to say
	if reason := p.refuses(c); reason != "" {
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

// clone copies a command as deep as Decide changes it.
func clone(c wire.Command) wire.Command {
	copied := reflect.New(reflect.TypeOf(c).Elem())
	copied.Elem().Set(reflect.ValueOf(c).Elem())
	return copied.Interface().(wire.Command)
}

// refuses gives the reasons that hold for commands of every type.
func (p *Policy) refuses(c wire.Command) string {
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
