package command

import (
	"errors"
	"regexp"
	"strings"
)

// Pattern matches targets, such as "*", "tel:+49*" or "sip:*@pbx.example". A
// number without a scheme is a tel: pattern. Scheme, user and host have to match;
// the port only if the pattern has one.
type Pattern struct {
	any     bool
	scheme  string
	user    *regexp.Regexp
	hasUser bool
	host    *regexp.Regexp
	port    string
}

var errPattern = errors.New(`use "*", a phone number, or a tel:, sip: or sips: URI without parameters; * matches any characters`)

// ParsePattern parses a pattern.
func ParsePattern(s string) (Pattern, error) {
	if s == "*" {
		return Pattern{any: true}, nil
	}
	scheme, rest, _ := strings.Cut(s, ":")
	p := Pattern{scheme: strings.ToLower(scheme), hasUser: true, host: glob("")}
	switch p.scheme {
	case "sip", "sips":
		return p.parseSIP(rest)
	case "tel":
	default:
		p.scheme, rest = "tel", s
	}
	// A wildcard is valid wherever a digit is.
	if _, ok := phoneNumber(strings.ReplaceAll(rest, "*", "0"), "#"); !ok {
		return Pattern{}, errPattern
	}
	p.user = glob(strings.NewReplacer("-", "", ".", "", "(", "", ")", "").Replace(rest))
	return p, nil
}

func (p Pattern) parseSIP(rest string) (Pattern, error) {
	if strings.ContainsAny(rest, ";?%") {
		return Pattern{}, errPattern
	}
	user, host, found := strings.Cut(rest, "@")
	if p.hasUser = found; !found {
		user, host = "", rest
	} else if _, err := unescape(user); err != nil || user == "" || strings.Contains(user, ":") {
		return Pattern{}, errPattern
	}
	var err error
	if strings.HasPrefix(host, "[") {
		host, p.port, err = hostPort(host)
	} else {
		// Validate with a letter instead of the wildcard, which is valid in any label.
		_, p.port, err = hostPort(strings.ReplaceAll(host, "*", "a"))
		host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(host, ":"+p.port), "."))
	}
	if err != nil {
		return Pattern{}, errPattern
	}
	p.user, p.host = glob(user), glob(host)
	return p, nil
}

// Matches reports whether the pattern matches the target.
func (p Pattern) Matches(t Target) bool {
	return p.any || p.scheme == t.Scheme && p.hasUser == (t.User != "") &&
		p.user.MatchString(t.User) && p.host.MatchString(t.Host) && (p.port == "" || p.port == t.Port)
}

// glob compiles a pattern in which * matches any characters except @, ; and ?.
// A user part can contain these in escaped form to imitate another address.
func glob(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, "[^@;?]*") + "$")
}
