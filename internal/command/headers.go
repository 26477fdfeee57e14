package command

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Bounds of a list of SIP headers: so many items at the most, and names and
// values together below so many characters.
const (
	MaxSIPHeaders       = 100
	SIPHeaderCharacters = 12000
)

// steering are header names, in lower case, that decide where a request goes,
// which dialogue it belongs to or on whose behalf it is made; compact forms
// included. A URI's query can set the same headers and a body, and may be taken
// for URI parameters, which steer as well.
var steering = map[string]bool{
	"route": true, "record-route": true, "path": true, "service-route": true,
	"refer-to": true, "r": true, "contact": true, "m": true, "to": true, "t": true, "from": true, "f": true,
	"via": true, "v": true, "max-forwards": true,
	"replaces": true, "join": true, "target-dialog": true, "call-id": true, "i": true, "cseq": true,
	"p-asserted-identity": true, "p-preferred-identity": true, "remote-party-id": true, "identity": true,
	"authorization": true, "proxy-authorization": true,
	"body": true, "method": true, "c": true, "e": true, "l": true,
	"maddr": true, "tgrp": true, "trunk-context": true, "phone-context": true, "rn": true, "cic": true, "postd": true,
}

// harmless are the URI parameters that a permitted target may carry. Others,
// such as maddr, tgrp, rn or postd, send the call elsewhere than user and host
// say.
var harmless = map[string]bool{"transport": true, "user": true, "ext": true, "isub": true}

// steers tells whether a header or query parameter needs the policy's leave. A
// name that stays escaped after decoding is treated as hiding one.
func steers(name string) bool {
	decoded, err := url.PathUnescape(name)
	if err != nil || strings.Contains(decoded, "%") {
		return true
	}
	decoded = strings.ToLower(strings.TrimSpace(decoded))
	return steering[decoded] || strings.HasPrefix(decoded, "content-") || !token.MatchString(decoded)
}

func checkHeaders(list []wire.NameValue, path, field string, issues *fault.Issues) {
	if len(list) > MaxSIPHeaders {
		issues.Add(path+field, fault.IssueTooMany, "There may be %d headers at the most.", MaxSIPHeaders)
	}
	total := 0
	for i, h := range list {
		total += utf8.RuneCountInString(h.Name) + utf8.RuneCountInString(h.Value)
		checkPair(h, func(member string) string { return fault.Pointer(path+field, i) + member }, issues)
	}
	if total >= SIPHeaderCharacters {
		issues.Add(path+field, fault.IssueTooLong, "Names and values must stay below %d characters together.", SIPHeaderCharacters)
	}
}

func checkQuery(params wire.NameValues, path, field string, issues *fault.Issues) {
	for i, p := range params.List {
		at := func(member string) string {
			if params.AsObject {
				return fault.Pointer(path+field, p.Name)
			}
			return fault.Pointer(path+field, i) + member
		}
		checkPair(p, at, issues)
		if hidesBreak(p.Value) {
			issues.Add(at("/value"), fault.IssueForbidden, "CR, LF and NUL are not allowed, escaped or not.")
		}
	}
}

// checkPair asks at for the place of a member only when it has to name it.
func checkPair(p wire.NameValue, at func(member string) string, issues *fault.Issues) {
	switch {
	case p.Name == "":
		issues.Missing(at("/name"), "A name is needed.")
	case !token.MatchString(p.Name):
		issues.Add(at("/name"), fault.IssueForbidden, "A name consists of letters, digits and -.!%%*_+`'~ alone.")
	}
	if !p.HasValue() {
		issues.Missing(at("/value"), "A value is needed.")
	}
	if breaksLine(p.Value) {
		issues.Add(at("/value"), fault.IssueForbidden, "CR, LF and NUL are not allowed here.")
	}
}

// checkLine keeps what ends up in a SIP message on one line: a line break would
// let a provider write headers, or a whole request, of its own.
func checkLine(s, path, field string, issues *fault.Issues) {
	if breaksLine(s) {
		issues.Add(path+field, fault.IssueForbidden, "CR, LF and NUL are not allowed here.")
	}
}

func breaksLine(s string) bool { return strings.ContainsAny(s, "\r\n\x00") }

// hidesBreak finds CR, LF or NUL behind one or more layers of percent escapes,
// which whoever builds the URI would take away. It looks at each byte once.
func hidesBreak(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			continue
		}
		rest := s[i+1:]
		for strings.HasPrefix(rest, "25") {
			rest = rest[2:]
		}
		if len(rest) >= 2 && rest[0] == '0' && strings.IndexByte("0aAdD", rest[1]) >= 0 {
			return true
		}
		i = len(s) - len(rest) - 1
	}
	return false
}
