package command

import (
	"slices"
	"strings"

	"telapi/callruntime/wire"
)

// complete fills in the flow's defaults and gives the reasons that depend on
// what a command says.
func (p *Policy) complete(c wire.Command, transactionID string) string {
	switch c := c.(type) {
	case *wire.Hangup:
		return p.completeHangup(c, transactionID)
	case *wire.Transfer:
		return p.completeTransfer(c, transactionID)
	case *wire.UpdateSTTConfig:
		return inChain(c.Config.Provider, p.profile.Speech.STT)
	case *wire.UpdateTTSConfig:
		return inChain(c.Config.Provider, p.profile.Speech.TTS)
	}
	return ""
}

func inChain(provider *string, chain []string) string {
	if provider != nil && !slices.Contains(chain, *provider) {
		return ProviderNotInChain
	}
	return ""
}

func (p *Policy) completeHangup(c *wire.Hangup, transactionID string) string {
	if d := p.profile.Actions.Hangup; d != nil {
		if c.Reason == "" {
			c.Reason = d.Reason
		}
		orElse(&c.WaitForSilence, d.WaitForSilence)
		orElse(&c.DelayBotDisconnectMs, d.DelayBotDisconnectMs)
	}
	if c.Header.WaitForSilence {
		c.WaitForSilence = &c.Header.WaitForSilence
	}
	if !p.allowsHeaders(c.Type, &c.CallControl, nil) {
		return HeaderNotAllowed
	}
	c.HangupSIPHeaders = withTransaction(c.HangupSIPHeaders, transactionID)
	return ""
}

func (p *Policy) completeTransfer(c *wire.Transfer, transactionID string) string {
	if d := p.profile.Actions.Transfer; d != nil {
		if c.Target == "" && c.TransferMethod != SIPBye {
			c.Target = d.Target
		}
		if c.Message == "" {
			c.Message = d.Message
		}
		orElse(&c.CanConfirm, d.CanConfirm)
	}
	var query []wire.NameValue
	if c.Target != "" {
		target, err := ParseTarget(c.Target)
		if err != nil {
			return TargetNotAllowed
		}
		if reason := p.refusesTarget(target); reason != "" {
			return reason
		}
		if p.configured == nil || !target.same(*p.configured) {
			query = target.Headers
		}
		if target.Scheme != "tel" {
			c.TransferRoutingPool = "" // pools select numbers
		}
	} else if c.TransferMethod != SIPBye {
		return TargetMissing
	}
	if !p.allowsHeaders(c.Type, &c.CallControl, query) {
		return HeaderNotAllowed
	}
	c.TransferSIPHeaders = withTransaction(c.TransferSIPHeaders, transactionID)
	return ""
}

// refusesTarget lets calls go to the configured target or to one that a pattern
// of the flow permits, and nowhere else; the platform has the last word.
func (p *Policy) refusesTarget(t Target) string {
	matches := func(x Pattern) bool { return x.Matches(t) }
	if p.platform.restricted && !slices.ContainsFunc(p.platform.targets, matches) {
		return TargetNotAllowed
	}
	if p.configured != nil && t.same(*p.configured) {
		return ""
	}
	for _, r := range p.rules["transfer"] {
		if !slices.ContainsFunc(r.targets, matches) {
			return TargetNotAllowed
		}
		for _, param := range t.Params {
			if !harmless[param.Name] && !r.lists(param.Name) {
				return ParameterNotAllowed
			}
		}
	}
	return ""
}

// allowsHeaders looks for headers that steer, wherever a command can hold them.
func (p *Policy) allowsHeaders(commandType string, c *wire.CallControl, query []wire.NameValue) bool {
	for _, list := range [][]wire.NameValue{c.TransferSIPHeaders, c.HangupSIPHeaders, c.TransferSIPQueryParams.List, c.SIPQueryParams.List, query} {
		for _, h := range list {
			for _, r := range p.rules[commandType] {
				if steers(h.Name) && !r.lists(h.Name) {
					return false
				}
			}
		}
	}
	return true
}

func (r rule) lists(name string) bool {
	return slices.ContainsFunc(r.AllowedHeaders, func(allowed string) bool { return strings.EqualFold(allowed, name) })
}

// withTransaction adds the platform's own header, which does not count against
// the provider's and which no provider can set to something else.
func withTransaction(list []wire.NameValue, transactionID string) []wire.NameValue {
	if transactionID == "" {
		return list
	}
	out := make([]wire.NameValue, 0, len(list)+1)
	for _, h := range list {
		if !strings.EqualFold(h.Name, wire.TransactionHeader) {
			out = append(out, h)
		}
	}
	return append(out, wire.NameValue{Name: wire.TransactionHeader, Value: transactionID})
}

func orElse[T any](to **T, fallback *T) {
	if *to == nil {
		*to = fallback
	}
}
