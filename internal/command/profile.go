package command

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Bounds of a gateway profile.
const (
	MaxProfileBytes = 64 << 10 // as JSON without white space
	maxAllowed      = 100      // headers in one policy
	maxHeaderName   = 128      // characters
	maxProviders    = 50       // in a chain
	maxProviderName = 128      // characters
)

// CheckProfile adds the invalid values of a gateway profile to issues. It ignores
// unknown members, because later versions may define them.
func CheckProfile(p wire.GatewayProfile, base string, issues *fault.Issues) {
	if text, err := json.Marshal(p); err != nil || len(text) > MaxProfileBytes {
		issues.Add(base, fault.IssueTooLong, "A gateway profile must have at most %d bytes of JSON.", MaxProfileBytes)
		return
	}
	checkCount(p.CommandSources, len(wire.Sources), base+"/commandSources", issues)
	for i, source := range p.CommandSources {
		if at := fault.Pointer(base+"/commandSources", i); !slices.Contains(wire.Sources, source) && !issues.Has(at) {
			issues.Add(at, fault.IssueValue, "Unknown source %q: use %s.", source, strings.Join(wire.Sources, ", "))
		}
	}
	if checkCount(p.CommandPolicies, len(Catalogue), base+"/commandPolicies", issues) {
		checkPolicies(p.CommandPolicies, base+"/commandPolicies", issues)
	}
	if t := p.Actions.Transfer; t != nil {
		validator{base, issues}.target(t.Target, "/actions/transfer/target")
	}
	if h := p.Actions.Hangup; h != nil && h.DelayBotDisconnectMs != nil {
		const name = "delayBotDisconnectMs"
		fieldBounds[name].check(*h.DelayBotDisconnectMs, name, base+"/actions/hangup/"+name, issues)
	}
	checkProviders(p.Speech.STT, base+"/speech/stt", issues)
	checkProviders(p.Speech.TTS, base+"/speech/tts", issues)
}

// checkCount adds an issue and returns false if a list is too long.
func checkCount[T any](list []T, highest int, path string, issues *fault.Issues) bool {
	if len(list) > highest {
		issues.Add(path, fault.IssueTooMany, "At most %d items are allowed.", highest)
	}
	return len(list) <= highest
}

func checkPolicies(policies []wire.CommandPolicy, base string, issues *fault.Issues) {
	seen := map[string]bool{}
	for i, policy := range policies {
		path := fault.Pointer(base, i)
		switch {
		case policy.Type == "":
			issues.Missing(path+"/type", "type is required.")
		case !Known(policy.Type):
			issues.Add(path+"/type", fault.IssueValue, "Unknown command type %q: use %s.", policy.Type, typeNames)
		case seen[policy.Type]:
			issues.Add(path+"/type", fault.IssueValue, "Duplicate policy for %s.", policy.Type)
		}
		seen[policy.Type] = true
		parsePatterns(policy.AllowedTargets, path+"/allowedTargets", issues)
		checkHeaderNames(policy.AllowedHeaders, path+"/allowedHeaders", issues)
	}
}

// parsePatterns returns the valid patterns and adds the others to issues. If there
// are too many, none is valid.
func parsePatterns(list []string, base string, issues *fault.Issues) []Pattern {
	if !checkCount(list, maxPatterns, base, issues) {
		return nil
	}
	var patterns []Pattern
	for i, s := range list {
		p, err := ParsePattern(s)
		switch at := fault.Pointer(base, i); {
		case err == nil:
			patterns = append(patterns, p)
		case errors.Is(err, errPatternLength):
			issues.Add(at, fault.IssueTooLong, "Must have at most %d characters.", maxPattern)
		case !issues.Has(at):
			issues.Add(at, fault.IssueValue, "Invalid target pattern: %v.", err)
		}
	}
	return patterns
}

// checkHeaderNames adds an issue for each invalid name of a header or parameter.
func checkHeaderNames(names []string, path string, issues *fault.Issues) {
	if !checkCount(names, maxAllowed, path, issues) {
		return
	}
	for i, name := range names {
		switch {
		case len(name) > maxHeaderName:
			issues.Add(fault.Pointer(path, i), fault.IssueTooLong, "Must have at most %d characters.", maxHeaderName)
		case !token.MatchString(name):
			issues.Add(fault.Pointer(path, i), fault.IssueValue, "Invalid name %q: use letters, digits and hyphens, such as X-Queue.", name)
		}
	}
}

// checkProviders adds an issue for each invalid name in a chain of speech providers.
func checkProviders(chain []string, path string, issues *fault.Issues) {
	if !checkCount(chain, maxProviders, path, issues) {
		return
	}
	for i, provider := range chain {
		switch {
		case utf8.RuneCountInString(provider) > maxProviderName:
			issues.Add(fault.Pointer(path, i), fault.IssueTooLong, "Must have at most %d characters.", maxProviderName)
		case strings.TrimSpace(provider) == "":
			issues.Add(fault.Pointer(path, i), fault.IssueValue, "The name of a provider must not be blank.")
		}
	}
}
