package command

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Reasons to deny a command. They are part of the API.
const (
	UnknownAction       = "unknown_action"        // not a managed command
	PlatformDisabled    = "platform_disabled"     // disabled on this platform
	SourceNotAllowed    = "source_not_allowed"    // the profile does not allow the source
	TypeNotAllowed      = "type_not_allowed"      // the profile has no policy for the type
	TypeDisabled        = "type_disabled"         // the profile's policy disables the type
	FieldMissing        = "field_missing"         // a required field is missing
	TargetMissing       = "target_missing"        // no target given or configured, or its name is misspelled
	TargetNotAllowed    = "target_not_allowed"    // not the configured target and no pattern matches
	ParameterNotAllowed = "parameter_not_allowed" // the profile or the platform does not allow a URI parameter
	HeaderNotAllowed    = "header_not_allowed"    // the profile or the platform does not allow a header or query parameter
	ProviderNotInChain  = "provider_not_in_chain" // not a configured speech provider
)

// PlatformPolicy restricts all gateway profiles.
type PlatformPolicy struct {
	disabled   []string
	restricted bool // deny all targets that match none of the patterns in targets
	targets    []Pattern
	headers    []string
}

// NewPlatformPolicy returns a policy that disables command types and, unless
// targets is empty, restricts transfers to targets. Gateway profiles can allow only
// the SIP headers and URI parameters in headers. The error lists all invalid values
// as /disabled/<n>, /targets/<n> and /headers/<n>.
func NewPlatformPolicy(disabled, targets, headers []string) (PlatformPolicy, error) {
	var issues fault.Issues
	for i, t := range disabled {
		if !Known(t) {
			issues.Add(fault.Pointer("/disabled", i), fault.IssueValue, "Unknown command type %q. Use %s.", t, typeNames)
		}
	}
	patterns := parsePatterns(targets, "/targets", &issues)
	checkHeaderNames(headers, "/headers", &issues)
	return PlatformPolicy{disabled, len(targets) > 0, patterns, headers}, issues.Err()
}

// Policy is a compiled gateway profile. It is safe for concurrent use.
type Policy struct {
	platform   PlatformPolicy
	profile    wire.GatewayProfile
	rules      map[string][]rule
	configured *Target // the default target of transfers
}

// rule is an item of commandPolicies. If a command type has several, a command
// must satisfy all of them.
type rule struct {
	wire.CommandPolicy
	targets []Pattern
}

// NewPolicy compiles a gateway profile. Commands are denied unless the profile
// allows them; invalid parts of the profile allow nothing.
func NewPolicy(profile wire.GatewayProfile, platform PlatformPolicy) *Policy {
	p := &Policy{platform: platform, profile: profile, rules: map[string][]rule{}}
	var ignored fault.Issues // CheckProfile reports them when the profile is saved
	for _, c := range profile.CommandPolicies {
		p.rules[c.Type] = append(p.rules[c.Type], rule{c, parsePatterns(c.AllowedTargets, "", &ignored)})
	}
	if t := profile.Actions.Transfer; t != nil {
		if target, err := ParseTarget(t.Target); err == nil {
			p.configured = &target
		}
	}
	return p
}

// Decision is an allowed command, completed with the defaults of the profile, or a
// denied command with the reason.
type Decision struct {
	Command wire.Command
	Apply   wire.ApplyMode
	Reason  string   // empty if allowed
	Ignored []string // members without effect
}

// Decide checks a command against the profile and the platform policy. It does
// not modify the command. It adds the transaction ID to the SIP headers of an
// allowed command.
func (p *Policy) Decide(r Request, source, transactionID string) Decision {
	// A shallow copy is enough: fields are replaced, never the values they point to.
	copied := reflect.New(reflect.TypeOf(r.Command).Elem())
	copied.Elem().Set(reflect.ValueOf(r.Command).Elem())
	c := copied.Interface().(wire.Command)
	head := c.Common()
	head.Source = source
	head.RequireConfirmation, head.WaitForSilence = false, false // set by policies only
	d := Decision{Command: c, Ignored: r.Ignored}
	if d.Reason = p.deny(c); d.Reason != "" {
		return d
	}
	for _, rule := range p.rules[head.Type] {
		head.RequireConfirmation = head.RequireConfirmation || rule.RequireConfirmation
		head.WaitForSilence = head.WaitForSilence || rule.WaitForSilence
	}
	if t, ok := c.(*wire.Transfer); ok && r.misspelledTarget && lacksTarget(t) {
		d.Reason = TargetMissing
		return d
	}
	switch d.Reason = p.complete(c, transactionID); d.Reason {
	case "":
		d.Apply = specs[head.Type].Apply
	case ProviderNotInChain: // no other setting has an effect either
		config, _ := p.speechConfig(c)
		d.Ignored = append(slices.Clip(d.Ignored), settings(config)...)
	}
	return d
}

// deny returns the reason to deny a command because of its source, its type or a
// missing field, or "".
func (p *Policy) deny(c wire.Command) string {
	head := c.Common()
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
		if f.Required && f.valueIn(c).IsZero() {
			return FieldMissing
		}
	}
	return ""
}

// complete applies the defaults of the gateway profile. It returns the reason to
// deny a command because of its values, or "".
func (p *Policy) complete(c wire.Command, transactionID string) string {
	switch c := c.(type) {
	case *wire.Hangup:
		return p.completeHangup(c, transactionID)
	case *wire.Transfer:
		return p.completeTransfer(c, transactionID)
	}
	if config, chain := p.speechConfig(c); config != nil && config.Provider != nil && !slices.Contains(chain, *config.Provider) {
		return ProviderNotInChain
	}
	return ""
}

// speechConfig returns the speech configuration in a command, or nil, and the chain of its
// providers.
func (p *Policy) speechConfig(c wire.Command) (config *wire.SpeechConfig, chain []string) {
	switch c := c.(type) {
	case *wire.UpdateSTTConfig:
		return c.Config, p.profile.Speech.STT
	case *wire.UpdateTTSConfig:
		return c.Config, p.profile.Speech.TTS
	}
	return nil, nil
}

// settings returns the names of the settings in a speech configuration.
func settings(config *wire.SpeechConfig) (names []string) {
	raw, _ := json.Marshal(config) // cannot fail: the values are decoded JSON
	for name := range strictjson.Members(raw) {
		names = append(names, "config."+name)
	}
	return names
}

func (p *Policy) completeHangup(c *wire.Hangup, transactionID string) string {
	if d := p.profile.Actions.Hangup; d != nil {
		c.Reason = cmp.Or(c.Reason, d.Reason)
		c.WaitForSilence = cmp.Or(c.WaitForSilence, d.WaitForSilence)
		c.DelayBotDisconnectMs = cmp.Or(c.DelayBotDisconnectMs, d.DelayBotDisconnectMs)
	}
	if c.CommonFields.WaitForSilence { // a rule requires it; c.WaitForSilence is the hangup's own field
		c.WaitForSilence = new(true)
	}
	if !p.allowsHeaders(c.Type, &c.CallControl) {
		return HeaderNotAllowed
	}
	c.HangupSIPHeaders = withTransaction(c.HangupSIPHeaders, transactionID)
	return ""
}

func lacksTarget(t *wire.Transfer) bool { return t.Target == "" && t.TransferMethod != sipBye }

func (p *Policy) completeTransfer(c *wire.Transfer, transactionID string) string {
	if d := p.profile.Actions.Transfer; d != nil {
		if lacksTarget(c) {
			c.Target = d.Target
		}
		c.Message = cmp.Or(c.Message, d.Message)
		c.CanConfirm = cmp.Or(c.CanConfirm, d.CanConfirm)
	}
	if lacksTarget(c) {
		return TargetMissing
	}
	var query []wire.NameValue
	targetRules := p.rules[c.Type]
	if c.Target != "" {
		target, err := ParseTarget(c.Target)
		if err != nil {
			return TargetNotAllowed
		}
		if p.configured != nil && target.equal(*p.configured) {
			targetRules = nil // a profile allows its configured target
		}
		if reason := p.denyTarget(target, targetRules); reason != "" {
			return reason
		}
		c.Target, query = target.String(), target.Headers
		if target.Scheme != "tel" {
			c.TransferRoutingPool = "" // only for phone numbers
		}
	}
	if !p.allowsHeaders(c.Type, &c.CallControl) || !p.allows(query, harmlessHeader, targetRules) {
		return HeaderNotAllowed
	}
	c.TransferSIPHeaders = withTransaction(c.TransferSIPHeaders, transactionID)
	return ""
}

// denyTarget returns the reason to deny a target, or "". A target must match a
// pattern of each rule, and the platform's restrictions.
func (p *Policy) denyTarget(t Target, rules []rule) string {
	matches := func(x Pattern) bool { return x.Matches(t) }
	if p.platform.restricted && !slices.ContainsFunc(p.platform.targets, matches) {
		return TargetNotAllowed
	}
	for _, r := range rules {
		if !slices.ContainsFunc(r.targets, matches) {
			return TargetNotAllowed
		}
	}
	if !p.allows(t.Params, func(v wire.NameValue) bool { return harmlessParam(t.Scheme, v) }, rules) {
		return ParameterNotAllowed
	}
	return ""
}

// allowsHeaders checks the headers and query parameters in the fields of a command.
func (p *Policy) allowsHeaders(commandType string, c *wire.CallControl) bool {
	for _, list := range [][]wire.NameValue{c.TransferSIPHeaders, c.HangupSIPHeaders, c.TransferSIPQueryParams.List, c.SIPQueryParams.List} {
		if !p.allows(list, harmlessHeader, p.rules[commandType]) {
			return false
		}
	}
	return true
}

// allows reports whether each item is harmless, or its name allowed by the platform and
// each rule.
func (p *Policy) allows(list []wire.NameValue, harmless func(wire.NameValue) bool, rules []rule) bool {
	for _, h := range list {
		if harmless(h) {
			continue
		}
		if !containsFold(p.platform.headers, h.Name) {
			return false
		}
		for _, r := range rules {
			if !containsFold(r.AllowedHeaders, h.Name) {
				return false
			}
		}
	}
	return true
}

func containsFold(list []string, name string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) })
}

// withTransaction returns the headers with the transaction header, which replaces
// the provider's and does not count towards MaxSIPHeaders.
func withTransaction(list []wire.NameValue, transactionID string) []wire.NameValue {
	if transactionID == "" {
		return list
	}
	list = slices.DeleteFunc(slices.Clone(list), func(h wire.NameValue) bool { return strings.EqualFold(h.Name, wire.TransactionHeader) })
	return append(list, wire.NameValue{Name: wire.TransactionHeader, Value: transactionID})
}
