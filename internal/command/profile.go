package command

import (
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// CheckProfile records invalid values of a gateway profile. It ignores unknown
// members, which later versions may define.
func CheckProfile(p wire.GatewayProfile, base string, issues *fault.Issues) {
	for i, source := range p.CommandSources {
		if at := fault.Pointer(base+"/commandSources", i); !slices.Contains(wire.Sources, source) && !issues.Has(at) {
			issues.Add(at, fault.IssueValue, "Unknown source %q: use %s.", source, strings.Join(wire.Sources, ", "))
		}
	}
	seen := map[string]bool{}
	for i, policy := range p.CommandPolicies {
		path := fault.Pointer(base+"/commandPolicies", i)
		switch {
		case policy.Type == "":
			issues.Missing(path+"/type", "type is required.")
		case !Known(policy.Type):
			issues.Add(path+"/type", fault.IssueValue, "Unknown command type %q.", policy.Type)
		case seen[policy.Type]:
			issues.Add(path+"/type", fault.IssueValue, "Duplicate policy for %s.", policy.Type)
		}
		seen[policy.Type] = true
		parsePatterns(policy.AllowedTargets, path+"/allowedTargets", issues)
		for j, name := range policy.AllowedHeaders {
			if !token.MatchString(name) {
				issues.Add(fault.Pointer(path+"/allowedHeaders", j), fault.IssueValue, "Invalid header name.")
			}
		}
	}
	if t := p.Actions.Transfer; t != nil && t.Target != "" {
		validator{base, issues}.target(t.Target, "/actions/transfer/target")
	}
	for _, chain := range []struct {
		name      string
		providers []string
	}{{"stt", p.Speech.STT}, {"tts", p.Speech.TTS}} {
		for i, provider := range chain.providers {
			if strings.TrimSpace(provider) == "" {
				issues.Add(fault.Pointer(base+"/speech/"+chain.name, i), fault.IssueValue, "The name of a provider must not be blank.")
			}
		}
	}
}

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
	patterns := parsePatterns(targets, "/targets", &issues)
	return PlatformPolicy{disabled, len(targets) > 0, patterns}, issues.Err()
}

// parsePatterns skips invalid patterns, which match nothing, and records them.
func parsePatterns(list []string, base string, issues *fault.Issues) []Pattern {
	var patterns []Pattern
	for i, s := range list {
		if p, err := ParsePattern(s); err == nil {
			patterns = append(patterns, p)
		} else if at := fault.Pointer(base, i); !issues.Has(at) {
			issues.Add(at, fault.IssueValue, "Invalid target pattern: %v.", err)
		}
	}
	return patterns
}
