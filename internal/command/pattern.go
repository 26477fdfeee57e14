package command

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxPattern is the maximum length of a pattern in characters.
	maxPattern = 128
	// maxPatterns is the maximum number of patterns in one policy.
	maxPatterns = 200
)

// Pattern matches targets, such as "*", "tel:+49*" or "sip:*@pbx.example". A
// number without a scheme is a tel: pattern. Scheme, user and host must match. The
// port must match if the pattern has one.
//
// A number with a phone-context matches only patterns with a phone-context, such as
// "tel:7*;phone-context=+4930", because the context determines who is called.
type Pattern struct {
	any    bool
	scheme string
	user   string // with wildcards; empty if targets must not have a user
	host   string // with wildcards; the phone-context if scheme is tel
	port   string
}

var (
	errPattern       = errors.New(`use "*", a phone number, or a tel:, sip: or sips: URI without parameters except phone-context; * matches any characters except @ ; ? & and ,`)
	errPatternLength = fmt.Errorf("use at most %d characters", maxPattern)
)

// ParsePattern parses a pattern.
func ParsePattern(s string) (Pattern, error) {
	if utf8.RuneCountInString(s) > maxPattern {
		return Pattern{}, errPatternLength
	}
	if s == "*" {
		return Pattern{any: true}, nil
	}
	scheme, rest, _ := strings.Cut(s, ":")
	p := Pattern{scheme: strings.ToLower(scheme)}
	switch p.scheme {
	case "sip", "sips":
		return p.parseSIP(rest)
	case "tel":
		return p.parseTel(rest)
	default:
		p.scheme = "tel"
		return p.parseTel(s)
	}
}

// removeSeparators removes the separators in a phone number.
var removeSeparators = strings.NewReplacer("-", "", ".", "", "(", "", ")", "")

func (p Pattern) parseTel(rest string) (Pattern, error) {
	number, param, given := strings.Cut(rest, ";")
	// Validate with a digit instead of each wildcard.
	if _, ok := phoneNumber(strings.ReplaceAll(number, "*", "0"), "#"); !ok {
		return Pattern{}, errPattern
	}
	p.user = removeSeparators.Replace(number)
	if !given {
		return p, nil
	}
	name, context, _ := strings.Cut(param, "=")
	valid := false
	if strings.HasPrefix(context, "+") {
		_, valid = parseContext(strings.ReplaceAll(context, "*", "0"))
		p.host = removeSeparators.Replace(context)
	} else {
		// A host name: validate with a letter instead of each wildcard.
		_, valid = parseContext(strings.ReplaceAll(context, "*", "a"))
		p.host = strings.ToLower(strings.TrimSuffix(context, "."))
	}
	if !valid || !strings.EqualFold(name, phoneContext) || strings.HasPrefix(number, "+") {
		return Pattern{}, errPattern
	}
	return p, nil
}

func (p Pattern) parseSIP(rest string) (Pattern, error) {
	user, host, found := strings.Cut(rest, "@")
	if !found {
		user, host = "", rest
	} else if _, err := unescape(user); err != nil || user == "" || strings.ContainsAny(user, " :?%") {
		return Pattern{}, errPattern
	}
	var err error
	if strings.HasPrefix(host, "[") {
		host, p.port, err = hostPort(host)
	} else {
		// Validate with a letter instead of each wildcard.
		_, p.port, err = hostPort(strings.ReplaceAll(host, "*", "a"))
		host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(host, ":"+p.port), "."))
	}
	if err != nil {
		return Pattern{}, errPattern
	}
	p.user, p.host = user, host
	return p, nil
}

// Matches reports whether the pattern matches the target.
func (p Pattern) Matches(t Target) bool {
	if p.any {
		return true
	}
	host := t.Host
	for _, param := range t.Params {
		if t.Scheme == "tel" && param.Name == phoneContext {
			host = param.Value
		}
	}
	return p.scheme == t.Scheme && (p.user == "") == (t.User == "") && (p.host == "") == (host == "") &&
		(p.port == "" || p.port == t.Port) && glob(p.host, host) && glob(p.user, t.plainUser) &&
		!strings.Contains(t.User, "%3B") // a semicolon in a pattern is not an escaped one
}

// uriSeparators separate the parts of a URI. A provider can put them into a user part,
// escaped or not, to imitate another address.
const uriSeparators = "@;?"

// separators are the characters that a wildcard does not match. Asterisk's Dial() calls
// every address of a list that "&" separates, and "," ends the list.
const separators = uriSeparators + "&,"

// glob reports whether a pattern, in which * matches any characters except
// separators, matches the whole text. Its time is linear in the length of both.
func glob(pattern, text string) bool {
	for {
		p, t := strings.IndexAny(pattern, separators), strings.IndexAny(text, separators)
		if p < 0 || t < 0 {
			return p == t && globField(pattern, text)
		}
		if pattern[p] != text[t] || !globField(pattern[:p], text[:t]) {
			return false
		}
		pattern, text = pattern[p+1:], text[t+1:]
	}
}

// globField is glob without separators. The first place where a part of the pattern
// fits is the best one, because it leaves most of the text to the next parts.
func globField(pattern, text string) bool {
	part, pattern, wildcard := strings.Cut(pattern, "*")
	if !wildcard {
		return part == text
	}
	text, ok := strings.CutPrefix(text, part)
	for ok {
		if part, pattern, wildcard = strings.Cut(pattern, "*"); !wildcard {
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part)
	}
	return false
}
