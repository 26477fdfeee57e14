package command

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// sipBye is the transfer method that needs no target: the receiver of the BYE
// routes the call by its headers.
const sipBye = "sip_bye"

var (
	transferMethods  = []string{"sip_refer", "sip_refer_replace", "sip_invite", "sip_invite_bridge", "sip_invite_reinvite_p2p", sipBye}
	outcomeModes     = []string{"blind", "notify"}
	operationResults = []string{"success", "failure"}
)

// validator collects the issues of the object at path. Fields are paths relative to it: for
// speed, most paths are joined only if there is an issue.
type validator struct {
	path   string
	issues *fault.Issues
}

func (v validator) add(field, code, format string, args ...any) {
	v.issues.Add(v.path+field, code, format, args...)
}

// command checks the values of a managed command. The decoder has checked their
// types. spec is that of c, whose own type is empty if issues was full.
func (v validator) command(c wire.Command, spec *Spec) {
	strictjson.CheckObject(&c.Common().Metadata, v.path+"/metadata", v.issues)
	for _, f := range spec.Fields {
		switch value := reflect.Indirect(f.valueIn(c)); {
		case !value.IsValid(): // absent
		case f.Type == "any" && jsontext.Value(value.Bytes()).Kind() == 'n':
			value.SetZero() // null counts as absent
		case f.Bounds != (Bounds{}):
			f.check(value.Interface(), f.Name, v.path+"/"+strings.ReplaceAll(f.Name, ".", "/"), v.issues)
		}
	}
	switch c := c.(type) {
	case *wire.Hangup:
		v.singleLine(c.Reason, "/reason")
		v.callControl(&c.CallControl)
	case *wire.Transfer:
		v.target(c.Target, "/target")
		v.singleLine(c.HangupReason, "/hangupReason")
		v.callControl(&c.CallControl)
	case *wire.SetContext:
		strictjson.CheckObject(&c.Values, v.path+"/values", v.issues)
	}
}

// callControl checks the members that hangups, transfers and control events
// share and returns the session parameters.
func (v validator) callControl(c *wire.CallControl) paramValues {
	v.oneOf(c.TransferMethod, transferMethods, "/transferMethod")
	v.oneOf(c.TransferReferOutcomeMode, outcomeModes, "/transferReferOutcomeMode")
	v.oneOf(c.BotOperationResult, operationResults, "/botOperationResult")
	v.singleLine(c.TransferRoutingPool, "/transferRoutingPool")
	v.singleLine(c.HandoverReason, "/handoverReason")
	v.singleLine(c.TransferReferredByURL, "/transferReferredByURL")
	v.noEscapedBreak(c.TransferReferredByURL, "/transferReferredByURL")
	v.headers(c.TransferSIPHeaders, "/transferSipHeaders")
	v.headers(c.HangupSIPHeaders, "/hangupSipHeaders")
	v.query(c.TransferSIPQueryParams, "/transferSipQueryParams")
	v.query(c.SIPQueryParams, "/sipQueryParams")
	strictjson.CheckObject(&c.BotOperationData, v.path+"/botOperationData", v.issues)
	strictjson.CheckObject(&c.SessionParams, v.path+"/sessionParams", v.issues)
	return parseParams(c.SessionParams, validator{v.path + "/sessionParams", v.issues})
}

func (v validator) oneOf(s string, allowed []string, field string) {
	if s != "" && !slices.Contains(allowed, s) {
		v.add(field, fault.IssueValue, "Must be one of %s.", strings.Join(allowed, ", "))
	}
}

// target checks a target, unless it is absent.
func (v validator) target(s, field string) {
	switch _, err := ParseTarget(s); {
	case s == "" || err == nil: // no issue
	case errors.Is(err, errLength):
		fieldBounds["target"].check(s, "target", v.path+field, v.issues)
	default:
		v.add(field, fault.IssueValue, "Invalid target: %v.", err)
	}
}

const (
	// MaxSIPHeaders is the maximum length of a list of SIP headers.
	MaxSIPHeaders = 100
	// SIPHeaderCharacters limits the headers and query parameters of a transfer:
	// their names and values must have fewer characters in total.
	SIPHeaderCharacters = 12000
)

// Names in lower case that every transfer and hangup may have, besides headers that
// start with x-. The gateway profile and the platform must allow all others, because
// they can change where a request goes, its dialog, its identity or its charging.
// Referred-By is set by a field of its own.
var (
	harmlessHeaders = nameSet("user-to-user subject reason")
	// harmlessParams are those of URIs, see harmlessParam. Patterns match the phone-context.
	harmlessParams = map[string]map[string]bool{
		"tel": nameSet("ext isub phone-context"), "sip": nameSet("transport user"), "sips": nameSet("transport user"),
	}
)

func nameSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// harmlessHeader reports whether a header or query parameter is always allowed.
// Query parameters are checked too, because they can set headers. A name with a
// percent sign may be the escaped form of another one.
func harmlessHeader(h wire.NameValue) bool {
	name := strings.ToLower(h.Name)
	return harmlessHeaders[name] || strings.HasPrefix(name, "x-") && !strings.Contains(name, "%") && token.MatchString(name)
}

// harmlessParam reports whether a parameter of a URI is always allowed. Its value must
// not imitate other parameters if a SIP stack unescapes it.
func harmlessParam(scheme string, p wire.NameValue) bool {
	return harmlessParams[scheme][p.Name] && !strings.ContainsAny(p.Value, uriSeparators)
}

func (v validator) headers(list []wire.NameValue, field string) {
	if len(list) > MaxSIPHeaders {
		v.add(field, fault.IssueTooMany, "At most %d headers are allowed.", MaxSIPHeaders)
	}
	for i, h := range list {
		item := fault.Pointer(field, i)
		v.nameValue(h, item+"/name", item+"/value")
	}
}

// totalLength checks the total length of all headers and query parameters of a
// transfer, including the query of the target, because they become one SIP request.
// An issue of the target is reported at targetField. The headers of a hangup have no
// limit.
func (v validator) totalLength(c *wire.CallControl, target, targetField string) {
	parsed, _ := ParseTarget(target)
	total := 0
	for _, part := range []struct {
		field string
		list  []wire.NameValue
	}{
		{targetField, parsed.Headers},
		{"/transferSipHeaders", c.TransferSIPHeaders},
		{"/transferSipQueryParams", c.TransferSIPQueryParams.List},
		{"/sipQueryParams", c.SIPQueryParams.List},
	} {
		for _, h := range part.list {
			total += utf8.RuneCountInString(h.Name) + utf8.RuneCountInString(h.Value)
		}
		if total >= SIPHeaderCharacters {
			v.add(part.field, fault.IssueTooLong, "The names and values of all headers and query parameters of a transfer must have fewer than %d characters in total.", SIPHeaderCharacters)
			return
		}
	}
}

func (v validator) query(params wire.NameValues, field string) {
	for i, p := range params.List {
		item := fault.Pointer(field, i)
		nameField, valueField := item+"/name", item+"/value"
		if params.AsObject {
			nameField = fault.Pointer(field, p.Name)
			valueField = nameField
		}
		v.nameValue(p, nameField, valueField)
		v.noEscapedBreak(p.Value, valueField)
	}
}

// nameValue checks a header or parameter.
func (v validator) nameValue(p wire.NameValue, nameField, valueField string) {
	switch {
	case p.Name == "":
		v.issues.Missing(v.path+nameField, "name is required.")
	case !token.MatchString(p.Name):
		v.add(nameField, fault.IssueForbidden, "Only letters, digits and -.!%%*_+`'~ are allowed.")
	}
	if !p.HasValue() {
		v.issues.Missing(v.path+valueField, "value is required.")
	}
	v.singleLine(p.Value, valueField)
}

// singleLine rejects line breaks in values that become part of a SIP message: a
// line break would let a provider inject headers or a whole request.
func (v validator) singleLine(s, field string) {
	if hasBreak(s) {
		v.add(field, fault.IssueForbidden, "CR, LF and NUL are not allowed.")
	}
}

func (v validator) noEscapedBreak(s, field string) {
	if hasEscapedBreak(s) {
		v.add(field, fault.IssueForbidden, "CR, LF and NUL are not allowed, also in escaped form.")
	}
}

func hasBreak(s string) bool { return strings.ContainsAny(s, "\r\n\x00") }

// hasEscapedBreak reports whether s has a CR, LF or NUL that was percent-escaped once
// or several times, also in part: a SIP stack may unescape it. It unescapes s until no
// escape is left, in linear time.
func hasEscapedBreak(s string) bool {
	var b []byte
	for _, c := range []byte(s) {
		b = append(b, c)
		for n := len(b); n >= 3 && b[n-3] == '%'; n = len(b) {
			code, err := strconv.ParseUint(string(b[n-2:]), 16, 8)
			if err != nil {
				break
			}
			b = append(b[:n-3], byte(code))
			if hasBreak(string(b[n-3:])) {
				return true
			}
		}
	}
	return false
}
