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
	"unicode/utf8"

	"telapi/callruntime/wire"
)

// maxTarget is the maximum length of a target in characters.
const maxTarget = 256

// Target is the parsed and normalized destination of a transfer. Policies compare
// it instead of the original text.
//
// The grammar is that of RFC 3261 and RFC 3966 without passwords, and without forms
// that SIP stacks are known to interpret differently.
type Target struct {
	Scheme  string // tel, sip or sips
	User    string // with the necessary escapes only; the number without separators if Scheme is tel
	Host    string // lower case, without a trailing dot
	Port    string
	Params  []wire.NameValue // names in lower case
	Headers []wire.NameValue

	plainUser string // User without escapes, for patterns
}

var (
	errForm     = errors.New("use a phone number or a tel:, sip: or sips: URI")
	errLength   = fmt.Errorf("use at most %d characters", maxTarget)
	errEscape   = errors.New("a percent escape is invalid, doubled, a control character or not ASCII")
	errUser     = errors.New("the user part is empty or has a second @")
	errPassword = errors.New("passwords are not accepted; remove the colon and the password before the @")
	errHost     = errors.New("the host is not a valid host name or address")
	errRepeated = errors.New("a parameter is repeated")
	errContext  = errors.New("phone-context is a host name or a prefix such as +49, after a number without a plus")
)

// ParseTarget parses a phone number or a tel:, sip: or sips: URI.
func ParseTarget(s string) (t Target, err error) {
	if utf8.RuneCountInString(s) > maxTarget {
		return Target{}, errLength
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", r) }) {
		return Target{}, errForm
	}
	scheme, rest, _ := strings.Cut(s, ":")
	switch scheme = strings.ToLower(scheme); {
	case scheme != "tel" && scheme != "sip" && scheme != "sips":
		t, err = parseTel(strings.ReplaceAll(s, " ", ""))
		if len(t.Params) > 0 {
			err = errForm
		}
	case strings.Contains(rest, " "):
		err = errForm
	case scheme == "tel":
		t, err = parseTel(rest)
	default:
		t, err = parseSIP(scheme, rest)
	}
	if err != nil {
		return Target{}, err
	}
	t.plainUser, err = url.PathUnescape(t.User)
	return t, err
}

const phoneContext = "phone-context"

// parseTel parses a number with parameters.
func parseTel(rest string) (Target, error) {
	number, params, given := strings.Cut(rest, ";")
	t := Target{Scheme: "tel"}
	var err error
	if given {
		if t.Params, err = uriParams(params); err != nil {
			return Target{}, err
		}
	}
	var ok bool
	symbols := "*#"
	for i := range t.Params {
		switch p := &t.Params[i]; p.Name {
		case phoneContext:
			symbols += "ABCDEFabcdef" // RFC 3966 has them in local numbers
			if p.Value, ok = parseContext(p.Value); !ok || strings.HasPrefix(number, "+") {
				return Target{}, errContext
			}
		case "ext":
			if p.Value, ok = phoneNumber(p.Value, ""); !ok {
				return Target{}, errForm
			}
		}
	}
	if t.User, ok = phoneNumber(number, symbols); !ok {
		return Target{}, errForm
	}
	t.User = strings.ToUpper(t.User)
	return t, nil
}

// parseContext normalizes a phone-context: a host name or the start of a global
// number.
func parseContext(s string) (string, bool) {
	if strings.HasPrefix(s, "+") {
		return phoneNumber(s, "")
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	return s, hostName.MatchString(s)
}

// phoneNumber removes separators such as "-". A global number, which starts with
// "+", has only digits; a local number may have the symbols in extra too.
func phoneNumber(s, extra string) (string, bool) {
	var b strings.Builder
	for i, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9', c == '+' && i == 0:
			b.WriteByte(c)
		case strings.IndexByte("-.()", c) >= 0: // a separator
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
		switch {
		case strings.Contains(user, ":"):
			return Target{}, errPassword
		case user == "", strings.Contains(after, "@"):
			return Target{}, errUser
		}
		if t.User, err = normalizeUser(user); err != nil {
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
		if t.Params, err = uriParams(params); err != nil {
			return Target{}, err
		}
	}
	if hasHeaders {
		t.Headers, err = parsePairs(headers, "&")
	}
	return t, err
}

// normalizeUser removes the escapes of a user part that are not necessary and adds
// those that are. An escaped reserved character stays escaped, because RFC 3261
// distinguishes it from the character itself. A question mark is escaped, because
// some SIP stacks take it for the start of the headers.
func normalizeUser(s string) (string, error) {
	if _, err := unescape(s); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteString(escape(s[i:i+1], "&=+$,;/"))
			continue
		}
		c, _ := url.PathUnescape(s[i : i+3]) // cannot fail: unescape succeeded
		b.WriteString(escape(c, ""))
		i += 2
	}
	return b.String(), nil
}

// hostPort normalizes host[:port]. Numeric hosts other than dotted quads, such as
// 127.1 or 0x7f000001, are invalid because resolvers interpret them differently.
func hostPort(s string) (host, port string, err error) {
	var hasPort bool
	if strings.HasPrefix(s, "[") {
		inner, after, closed := strings.Cut(s[1:], "]")
		addr, err := netip.ParseAddr(inner)
		port, hasPort = strings.CutPrefix(after, ":")
		if err != nil || !closed || !addr.Is6() || addr.Zone() != "" || !hasPort && after != "" {
			return "", "", errHost
		}
		host = "[" + addr.String() + "]"
	} else {
		host, port, hasPort = strings.Cut(s, ":")
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) {
			return "", "", errHost
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || port[0] == '0') {
		return "", "", errHost
	}
	return host, port, nil
}

// hostName matches one or more labels, the last of which is not a number.
var hostName = regexp.MustCompile(`^(?:[a-z0-9_][a-z0-9_-]{0,62}\.)*[a-z_][a-z0-9_-]{0,62}$`)

// uriParams parses the parameters of a URI. Their names are case-insensitive.
func uriParams(s string) ([]wire.NameValue, error) {
	params, err := parsePairs(s, ";")
	for i := range params {
		params[i].Name = strings.ToLower(params[i].Name)
		if slices.ContainsFunc(params[:i], func(p wire.NameValue) bool { return p.Name == params[i].Name }) {
			return nil, errRepeated
		}
	}
	return params, err
}

// parsePairs parses items of the form name[=value] and unescapes both.
func parsePairs(s, separator string) ([]wire.NameValue, error) {
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
		list = append(list, wire.NameValue{Name: name, Value: value})
	}
	return list, nil
}

// unescape decodes percent escapes. It rejects text that was escaped twice, with
// which a provider could bypass checks.
func unescape(s string) (string, error) {
	decoded, err := url.PathUnescape(s)
	if err != nil || strings.ContainsFunc(decoded, func(r rune) bool { return r < ' ' || r >= 0x7f || r == '%' }) {
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
	if b.WriteString(t.User); t.Scheme != "tel" && t.User != "" {
		b.WriteByte('@')
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
