package command

import (
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// SIPBye is the transfer method that needs no target. The headers of the BYE
// route the call.
const SIPBye = "sip_bye"

const maxNotificationsHangupMS = 10000

var (
	transferMethods = []string{"sip_refer", "sip_refer_replace", "sip_invite", "sip_invite_bridge", "sip_invite_reinvite_p2p", SIPBye}
	outcomeModes    = []string{"blind", "notify"}
	results         = []string{"success", "failure"}
)

// validator records the issues of the object at path. Paths are joined only if
// there is an issue, because validation is on the hot path of callbacks.
type validator struct {
	path   string
	issues *fault.Issues
}

func (v validator) add(field, code, format string, args ...any) {
	v.issues.Add(v.path+field, code, format, args...)
}

// command checks the values of a managed command. Their types are checked by
// the decoder.
func (v validator) command(c wire.Command) {
	strictjson.CheckObject(&c.Head().Metadata, v.path, "/metadata", v.issues)
	for _, p := range paramsByCommand[c.Head().Type] {
		if value := p.field.of(c); !value.IsNil() {
			p.check(value.Elem().Interface(), strings.ReplaceAll(p.Field, ".", "/"), v)
		}
	}
	switch c := c.(type) {
	case *wire.Hangup:
		v.singleLine(c.Reason, "/reason")
		v.callControl(&c.CallControl)
	case *wire.Transfer:
		if c.Target != "" {
			v.target(c.Target, "/target")
		}
		v.singleLine(c.HangupReason, "/hangupReason")
		v.callControl(&c.CallControl)
	case *wire.SendDTMF:
		v.singleLine(c.Digits, "/digits")
	case *wire.SetContext:
		strictjson.CheckObject(&c.Values, v.path, "/values", v.issues)
	}
}

// callControl checks the members that hangups, transfers and control events
// share and returns the session parameters.
func (v validator) callControl(c *wire.CallControl) paramValues {
	v.oneOf(c.TransferMethod, transferMethods, "/transferMethod")
	v.oneOf(c.TransferReferOutcomeMode, outcomeModes, "/transferReferOutcomeMode")
	v.oneOf(c.BotOperationResult, results, "/botOperationResult")
	if ms := c.TransferNotificationsHangupMS; ms != nil {
		switch {
		case *ms < 0:
			v.add("/transferNotificationsHangupMS", fault.IssueTooSmall, "Must be at least 0.")
		case *ms > maxNotificationsHangupMS:
			v.add("/transferNotificationsHangupMS", fault.IssueTooLarge, "Must be at most %d.", maxNotificationsHangupMS)
		}
	}
	v.singleLine(c.TransferRoutingPool, "/transferRoutingPool")
	v.singleLine(c.HandoverReason, "/handoverReason")
	v.singleLine(c.TransferReferredByURL, "/transferReferredByURL")
	v.noEscapedBreak(c.TransferReferredByURL, func() string { return v.path + "/transferReferredByURL" })
	v.headers(c.TransferSIPHeaders, "/transferSipHeaders")
	v.headers(c.HangupSIPHeaders, "/hangupSipHeaders")
	v.query(c.TransferSIPQueryParams, "/transferSipQueryParams")
	v.query(c.SIPQueryParams, "/sipQueryParams")
	strictjson.CheckObject(&c.BotOperationData, v.path, "/botOperationData", v.issues)
	strictjson.CheckObject(&c.SessionParams, v.path, "/sessionParams", v.issues)
	return parseParams(c.SessionParams, validator{v.path + "/sessionParams", v.issues})
}

func (v validator) oneOf(s string, allowed []string, field string) {
	if s != "" && !slices.Contains(allowed, s) {
		v.add(field, fault.IssueValue, "Must be one of %s.", strings.Join(allowed, ", "))
	}
}

func (v validator) target(s, field string) {
	if _, err := ParseTarget(s); err != nil {
		v.add(field, fault.IssueValue, "Invalid target: %v.", err)
	}
}
