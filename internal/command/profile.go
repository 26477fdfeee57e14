package command

import (
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// CheckProfile notes everything in a gateway profile that could never permit
// what its author meant. Members of later versions are none of its business.
func CheckProfile(p wire.GatewayProfile, base string, issues *fault.Issues) {
	for i, source := range p.CommandSources {
		if at := fault.Pointer(base+"/commandSources", i); !slices.Contains(wire.Sources, source) && !issues.Has(at) {
			issues.Add(at, fault.IssueValue, "There is no source %q; sources are %s.", source, strings.Join(wire.Sources, ", "))
		}
	}
	seen := map[string]bool{}
	for i, policy := range p.CommandPolicies {
		path := fault.Pointer(base+"/commandPolicies", i)
		switch {
		case policy.Type == "":
			issues.Missing(path+"/type", "A policy names the command type it is about.")
		case !Known(policy.Type):
			issues.Add(path+"/type", fault.IssueValue, "There is no command type %q.", policy.Type)
		case seen[policy.Type]:
			issues.Add(path+"/type", fault.IssueValue, "There is a policy for %s already.", policy.Type)
		}
		seen[policy.Type] = true
		checkPatterns(policy.AllowedTargets, path+"/allowedTargets", issues)
		for j, name := range policy.AllowedHeaders {
			if !token.MatchString(name) {
				issues.Add(fault.Pointer(path+"/allowedHeaders", j), fault.IssueValue, "This is no header name.")
			}
		}
	}
	if t := p.Actions.Transfer; t != nil && t.Target != "" {
		if _, err := ParseTarget(t.Target); err != nil {
			issues.Add(base+"/actions/transfer/target", fault.IssueValue, "Not a target: %v.", err)
		}
	}
	for _, chain := range []struct {
		name      string
		providers []string
	}{{"stt", p.Speech.STT}, {"tts", p.Speech.TTS}} {
		for i, provider := range chain.providers {
			if strings.TrimSpace(provider) == "" {
				issues.Add(fault.Pointer(base+"/speech/"+chain.name, i), fault.IssueValue, "A provider has a name.")
			}
		}
	}
}

func checkPatterns(patterns []string, base string, issues *fault.Issues) {
	for i, s := range patterns {
		if _, err := ParsePattern(s); err != nil && !issues.Has(fault.Pointer(base, i)) {
			issues.Add(fault.Pointer(base, i), fault.IssueValue, "Not a target pattern: %v.", err)
		}
	}
}
