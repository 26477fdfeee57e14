package command

import (
	"reflect"
	"slices"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// SIPBye is the transfer method that needs no target: the call is routed by
// the headers of its BYE.
const SIPBye = "sip_bye"

const maxNotificationsHangupMS = 10000

var (
	transferMethods = []string{"sip_refer", "sip_refer_replace", "sip_invite", "sip_invite_bridge", "sip_invite_reinvite_p2p", SIPBye}
	outcomeModes    = []string{"blind", "notify"}
	results         = []string{"success", "failure"}
)

// check notes what is wrong with a managed command beyond the types of its
// fields.
func check(c wire.Command, path string, issues *fault.Issues) {
	spec := specs[c.Head().Type]
	strictjson.CheckObject(&c.Head().Metadata, path, "/metadata", issues)
	for i := range SessionParams {
		if p := &SessionParams[i]; p.Command == spec.Type {
			p.checkField(spec.field(p.Field).of(c), path, issues)
		}
	}
	switch c := c.(type) {
	case *wire.Hangup:
		checkLine(c.Reason, path, "/reason", issues)
		checkCallControl(&c.CallControl, path, issues)
	case *wire.Transfer:
		if c.Target != "" {
			checkTarget(c.Target, path, "/target", issues)
		}
		checkLine(c.HangupReason, path, "/hangupReason", issues)
		checkCallControl(&c.CallControl, path, issues)
	case *wire.SendDTMF:
		checkLine(c.Digits, path, "/digits", issues)
	case *wire.SetContext:
		strictjson.CheckObject(&c.Values, path, "/values", issues)
	}
}

// checkField holds a command's field against the bounds of the parameter that
// fills it, whichever way it was filled.
func (p *Param) checkField(v reflect.Value, path string, issues *fault.Issues) {
	if v.IsNil() {
		return
	}
	field := strings.ReplaceAll(p.Field, ".", "/")
	switch v := v.Elem().Interface().(type) {
	case int64:
		p.checkInteger(v, path, field, issues)
	case string:
		p.checkString(v, path, field, issues)
	}
}

// checkCallControl notes what is wrong with what hangups, transfers and control
// events have in common, and returns the session parameters among it.
func checkCallControl(c *wire.CallControl, path string, issues *fault.Issues) settings {
	checkOneOf(c.TransferMethod, transferMethods, path, "/transferMethod", issues)
	checkOneOf(c.TransferReferOutcomeMode, outcomeModes, path, "/transferReferOutcomeMode", issues)
	checkOneOf(c.BotOperationResult, results, path, "/botOperationResult", issues)
	if ms := c.TransferNotificationsHangupMS; ms != nil {
		switch at := path + "/transferNotificationsHangupMS"; {
		case *ms < 0:
			issues.Add(at, fault.IssueTooSmall, "This must be at least 0.")
		case *ms > maxNotificationsHangupMS:
			issues.Add(at, fault.IssueTooLarge, "This must be at most %d.", maxNotificationsHangupMS)
		}
	}
	checkLine(c.TransferRoutingPool, path, "/transferRoutingPool", issues)
	checkLine(c.HandoverReason, path, "/handoverReason", issues)
	checkLine(c.TransferReferredByURL, path, "/transferReferredByURL", issues)
	if hidesBreak(c.TransferReferredByURL) {
		issues.Add(path+"/transferReferredByURL", fault.IssueForbidden, "CR, LF and NUL are not allowed, escaped or not.")
	}
	checkHeaders(c.TransferSIPHeaders, path, "/transferSipHeaders", issues)
	checkHeaders(c.HangupSIPHeaders, path, "/hangupSipHeaders", issues)
	checkQuery(c.TransferSIPQueryParams, path, "/transferSipQueryParams", issues)
	checkQuery(c.SIPQueryParams, path, "/sipQueryParams", issues)
	strictjson.CheckObject(&c.BotOperationData, path, "/botOperationData", issues)
	strictjson.CheckObject(&c.SessionParams, path, "/sessionParams", issues)
	return readSettings(c.SessionParams, path, issues)
}

func checkOneOf(s string, allowed []string, path, field string, issues *fault.Issues) {
	if s != "" && !slices.Contains(allowed, s) {
		issues.Add(path+field, fault.IssueValue, "This is one of %s.", strings.Join(allowed, ", "))
	}
}

func checkTarget(s, path, field string, issues *fault.Issues) {
	if _, err := ParseTarget(s); err != nil {
		issues.Add(path+field, fault.IssueValue, "Not a target: %v.", err)
	}
}
