package command

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"telapi/callruntime/wire"
)

// Target is the parsed and normalized destination of a transfer. Policies compare
// it instead of the original text.
//
// The grammar is a subset of RFC 3261 and RFC 3966: forms that SIP stacks are
// known to interpret differently are invalid.
type Target struct {
	Scheme  string // tel, sip or sips
	User    string // unescaped; the number without separators if Scheme is tel
	Host    string // lower case, without a trailing dot
	Port    string
	Params  []wire.NameValue // names in lower case
	Headers []wire.NameValue
}

var (
	errForm   = errors.New("use a phone number or a tel:, sip: or sips: URI")
	errEscape = errors.New("a percent escape is invalid, doubled or a control character")
	errUser   = errors.New("the user part is empty or has a password or a second @")
	errHost   = errors.New("the host is not a valid host name or address")
)

// ParseTarget parses a phone number or a tel:, sip: or sips: URI.
func ParseTarget(s string) (Target, error) {
	if strings.ContainsAny(s, "\"<>\\^`{|}") {
		return Target{}, errForm
	}
	scheme, rest, _ := strings.Cut(s, ":")
	switch scheme = strings.ToLower(scheme); scheme {
	case "tel":
		return parseTel(rest)
	case "sip", "sips":
		return parseSIP(scheme, rest)
	default:
		number, ok := phoneNumber(strings.ReplaceAll(s, " ", ""), "*#")
		if !ok {
			return Target{}, errForm
		}
		return Target{Scheme: "tel", User: number}, nil
	}
}

func parseTel(rest string) (Target, error) {
	number, params, given := strings.Cut(rest, ";")
	t := Target{Scheme: "tel"}
	var ok bool
	if t.User, ok = phoneNumber(number, "*#"); !ok {
		return Target{}, errForm
	}
	var err error
	if given {
		t.Params, err = parsePairs(params, ";", strings.ToLower)
	}
	return t, err
}

// phoneNumber removes separators such as "-". A global number, which starts with
// "+", has only digits; a local number may have the symbols in extra too.
func phoneNumber(s, extra string) (string, bool) {
	var b strings.Builder
	for i, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9', c == '+' && i == 0:
			b.WriteByte(c)
		case strings.IndexByte("-.()", c) >= 0:
		case strings.IndexByte(extra, c) >= 0 && s[0] != '+':
			b.WriteByte(c)
		default:
			return "", false
		}
	}
	number := b.String()
	return number, strings.ContainsAny(number, "0123456789")
}

func parseSIP(scheme, rest string) (Target, error) {
	t := Target{Scheme: scheme}
	var err error
	if user, after, given := strings.Cut(rest, "@"); given {
		if user == "" || strings.ContainsAny(user, ":") || strings.Contains(after, "@") {
			return Target{}, errUser
		}
		if t.User, err = unescape(user); err != nil {
			return Target{}, err
		}
		rest = after
	}
	rest, headers, hasHeaders := strings.Cut(rest, "?")
	rest, params, hasParams := strings.Cut(rest, ";")
	if t.Host, t.Port, err = hostPort(rest); err != nil {
		return Target{}, err
	}
	if hasParams {
		if t.Params, err = parsePairs(params, ";", strings.ToLower); err != nil {
			return Target{}, err
		}
	}
	if hasHeaders {
		t.Headers, err = parsePairs(headers, "&", func(s string) string { return s })
	}
	return t, err
}

// hostPort normalizes host[:port]. Numeric hosts other than dotted quads, such as
// 127.1 or 0x7f000001, are invalid because resolvers interpret them differently.
func hostPort(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") {
		inner, after, closed := strings.Cut(s[1:], "]")
		addr, err := netip.ParseAddr(inner)
		if err != nil || !closed || !addr.Is6() || addr.Zone() != "" || !strings.HasPrefix(after+":", ":") {
			return "", "", errHost
		}
		host, port = "["+addr.String()+"]", strings.TrimPrefix(after, ":")
		if port == "" && after != "" {
			return "", "", errHost
		}
	} else {
		var given bool
		host, port, given = strings.Cut(s, ":")
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) || len(host) > 253 || given && port == "" {
			return "", "", errHost
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0 || port[0] == '0') {
		return "", "", errHost
	}
	return host, port, nil
}

// hostName matches one or more labels, the last of which is not a number.
var hostName = regexp.MustCompile(`^(?:[a-z0-9_][a-z0-9_-]{0,62}\.)*[a-z_][a-z0-9_-]{0,62}$`)

// parsePairs parses items of the form name[=value] and unescapes both. It applies
// fold to the names.
func parsePairs(s, separator string, fold func(string) string) ([]wire.NameValue, error) {
	var list []wire.NameValue
	for item := range strings.SplitSeq(s, separator) {
		name, value, _ := strings.Cut(item, "=")
		name, err := unescape(name)
		if err != nil || !token.MatchString(name) {
			return nil, errForm
		}
		if value, err = unescape(value); err != nil {
			return nil, err
		}
		list = append(list, wire.NameValue{Name: fold(name), Value: value})
	}
	return list, nil
}

// unescape decodes percent escapes. It rejects text that was escaped twice, with
// which a provider could bypass checks.
func unescape(s string) (string, error) {
	decoded, err := url.PathUnescape(s)
	if err != nil || strings.ContainsFunc(decoded, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '%' }) {
		return "", errEscape
	}
	return decoded, nil
}

// token matches a token of RFC 3261, such as a header name.
var token = regexp.MustCompile("^[A-Za-z0-9.!%*_+`'~-]+$")

// String returns the target in its canonical form. ParseTarget returns an equal
// target for it.
func (t Target) String() string {
	var b strings.Builder
	b.WriteString(t.Scheme + ":")
	if t.Scheme == "tel" {
		b.WriteString(t.User)
	} else if t.User != "" {
		b.WriteString(escape(t.User, "&=+$,") + "@")
	}
	b.WriteString(t.Host)
	if t.Port != "" {
		b.WriteString(":" + t.Port)
	}
	for _, p := range t.Params {
		b.WriteString(";" + escape(p.Name, "+"))
		if p.Value != "" {
			b.WriteString("=" + escape(p.Value, "[]/:&+$"))
		}
	}
	separator := "?"
	for _, h := range t.Headers {
		b.WriteString(separator + escape(h.Name, "+") + "=" + escape(h.Value, "[]/?:+$"))
		separator = "&"
	}
	return b.String()
}

// escape encodes the characters that are neither unreserved in RFC 3261 nor in
// extra.
func escape(s, extra string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte("-_.!~*'()"+extra, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// equal reports whether all parts of both targets are equal.
func (t Target) equal(o Target) bool {
	return t.Scheme == o.Scheme && t.User == o.User && t.Host == o.Host && t.Port == o.Port &&
		slices.Equal(t.Params, o.Params) && slices.Equal(t.Headers, o.Headers)
}

// Pattern matches targets, such as "*", "tel:+49*" or "sip:*@pbx.example". A
// number without a scheme is a tel: pattern. Scheme, user and host must match. The
// port must match if the pattern has one.
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
	// Validate with a digit instead of each wildcard.
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
		// Validate with a letter instead of each wildcard.
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

// glob compiles a pattern in which * matches any characters except @, ; and ?. A
// provider can put these into a user part, escaped, to imitate another address.
func glob(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, "[^@;?]*") + "$")
}
