package command

import (
	"cmp"
	"slices"
	"strings"

	"telapi/callruntime/wire"
)

// complete applies the defaults of the gateway profile. It returns the reason to
// deny a command because of its values, or "".
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
		c.Reason = cmp.Or(c.Reason, d.Reason)
		c.WaitForSilence = cmp.Or(c.WaitForSilence, d.WaitForSilence)
		c.DelayBotDisconnectMs = cmp.Or(c.DelayBotDisconnectMs, d.DelayBotDisconnectMs)
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
		c.Message = cmp.Or(c.Message, d.Message)
		c.CanConfirm = cmp.Or(c.CanConfirm, d.CanConfirm)
	}
	var query []wire.NameValue
	if c.Target != "" {
		target, err := ParseTarget(c.Target)
		if err != nil {
			return TargetNotAllowed
		}
		if reason := p.denyTarget(target); reason != "" {
			return reason
		}
		if p.configured == nil || !target.same(*p.configured) {
			query = target.Headers
		}
		if target.Scheme != "tel" {
			c.TransferRoutingPool = "" // only for phone numbers
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

// denyTarget returns the reason to deny a target, or "". The target has to be the
// configured one or match a pattern of the gateway profile. The patterns of the
// platform apply to both.
func (p *Policy) denyTarget(t Target) string {
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
			if !harmlessParams[param.Name] && !r.allowsHeader(param.Name) {
				return ParameterNotAllowed
			}
		}
	}
	return ""
}

// allowsHeaders checks all headers and query parameters of a command.
func (p *Policy) allowsHeaders(commandType string, c *wire.CallControl, query []wire.NameValue) bool {
	for _, list := range [][]wire.NameValue{c.TransferSIPHeaders, c.HangupSIPHeaders, c.TransferSIPQueryParams.List, c.SIPQueryParams.List, query} {
		for _, h := range list {
			for _, r := range p.rules[commandType] {
				if affectsRouting(h.Name) && !r.allowsHeader(h.Name) {
					return false
				}
			}
		}
	}
	return true
}

func (r rule) allowsHeader(name string) bool {
	return slices.ContainsFunc(r.AllowedHeaders, func(allowed string) bool { return strings.EqualFold(allowed, name) })
}

// withTransaction sets the transaction header. It replaces the provider's value
// and does not count towards MaxSIPHeaders.
func withTransaction(list []wire.NameValue, transactionID string) []wire.NameValue {
	if transactionID == "" {
		return list
	}
	list = slices.DeleteFunc(append(make([]wire.NameValue, 0, len(list)+1), list...), func(h wire.NameValue) bool { return strings.EqualFold(h.Name, wire.TransactionHeader) })
	return append(list, wire.NameValue{Name: wire.TransactionHeader, Value: transactionID})
}
