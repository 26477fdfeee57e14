package redact

import (
	"regexp"
	"strings"
)

// maskPhones masks all but the last keep digits of the phone numbers in s. The
// length of s does not change. name is the key under which s is logged, or empty.
// A number is a phone number if
//   - it follows a plus, tel: or sip:,
//   - it has a trunk zero or one of the usual groupings, or
//   - it follows a word such as "caller" in s, or name is such a word.
//
// Other digits are IDs, counts or timestamps.
func maskPhones(s, name string, keep int) string {
	var out []byte
	inWord := false // the previous byte belongs to a word; a plus after it does not start a number
	for i := 0; i < len(s); {
		c, next := s[i], i+1
		switch {
		case isDigit(c), c == '(', c == '+' && !inWord, c == '%' && hasPrefixFold(s[i:], "%2b"):
			digits := i // after the plus
			switch c {
			case '+':
				digits += len("+")
			case '%':
				digits += len("%2b")
			}
			if end := numberEnd(s, i, digits, name); end > 0 {
				if out == nil {
					out = []byte(s)
				}
				mask(out[digits:end], keep)
				next = end
			} else if isDigit(c) {
				next = wordEnd(s, i)
			}
			inWord = isDigit(c)
		case isWord(c):
			next, inWord = wordEnd(s, i), true
		case c == '%' && i+2 < len(s) && isWord(s[i+1]) && isWord(s[i+2]):
			next, inWord = i+len("%20"), false
		default:
			inWord = false
		}
		i = next
	}
	if out == nil {
		return s
	}
	return string(out)
}

// mask replaces all but the last keep digits with asterisks.
func mask(number []byte, keep int) {
	for i := len(number) - 1; i >= 0; i-- {
		if isDigit(number[i]) {
			if keep <= 0 {
				number[i] = '*'
			}
			keep--
		}
	}
}

const (
	maxDigits = 15 // of a phone number, the limit of E.164
	minDigits = 7  // of a phone number outside of a URI; fewer are a status, a port or a count
	minInURI  = 3  // after tel: or sip:
	// A space after usualDigits ends a number: the next group is another value.
	usualDigits  = 11
	maxSeparator = 3 // characters between two groups of digits, such as " / "
)

// numberEnd returns the end of the phone number that starts at start, or 0. body is
// the position after its plus. A number may have several groups of digits; the
// longest match counts.
func numberEnd(s string, start, body int, name string) (end int) {
	digits, context := 0, unknown
	for j := body; ; {
		separator := j
		for j < len(s) && j-separator < maxSeparator && strings.IndexByte(" -./()", s[j]) >= 0 && (j == separator || s[j] != s[j-1]) {
			j++
		}
		group := j
		for j < len(s) && isDigit(s[j]) {
			j++
		}
		complete := digits >= usualDigits && separator < len(s) && s[separator] == ' '
		digits += j - group
		if group == j || complete || digits > maxDigits {
			return end
		}
		inURI := start > 0 && (s[start-1] == ':' || s[start-1] == 'A') // perhaps tel:, sip: or %3A
		if digits < minInURI || digits < minDigits && !inURI {
			continue
		}
		if context == unknown {
			if context = contextOf(s[:start], name); body > start && context != uri {
				context = plus
			}
		}
		if isPhone(s[body:j], s[j:min(j+2, len(s))], digits, context) {
			end = j
		}
	}
}

var (
	// notPhone matches IPv4 addresses, dates, fractions and zero padding.
	notPhone = regexp.MustCompile(`^(?:(?:0|[1-9]\d{0,2})(?:\.(?:0|[1-9]\d{0,2})){3}(?:[^.\d]|$)|` +
		`(?:19|20)\d\d[-./]\d\d?[-./]\d|\d\d?[-./]\d\d?[-./](?:19|20)\d\d(?:\D|$)|0\D|000)`)
	// formatted matches an area code in parentheses, a trunk zero, North American
	// numbers, groups of two or three digits, and a country code without a plus.
	formatted = regexp.MustCompile(`^(?:\(\d+\)|0\d|(?:1[-. ])?\d{3}[-. ]\d{3}[-. ]\d{4}$|\d{3}-\d{4}$|` +
		`\d\d(?: \d\d){3,4}$|\d{3} \d{3} \d{3}$|\d\d[- ]\d{2,3}[- ]\d{7,8}$)`)
	// endsNumber matches text that can follow a phone number. It rejects text that
	// continues an ID, a time, a fraction or a quantity with a unit.
	endsNumber = regexp.MustCompile(`^(?:$|-(?:\W|$)|[:./](?:\D|$)|[^\w:./-])`)
	// timestamp matches seconds, milliseconds and compact dates.
	timestamp = regexp.MustCompile(`^(?:1\d{9}|1\d{12}|(?:19|20)\d{12})$`)
	// ungrouped matches a number without separators.
	ungrouped = regexp.MustCompile(`^\d{10,15}$`)

	// contexts are recognized by the text before a number.
	contexts = []struct {
		context int
		pattern *regexp.Regexp
	}{
		{clock, regexp.MustCompile(`\d:$`)},
		{uri, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:(?:tel|sips?)(?::|%3a)|(?:pj)?sip/)$`)},
		{named, regexp.MustCompile(`(?i)(?:(?:phone|msisdn|caller|callee|dial|mobile)[a-z_-]*|(?:^|[^a-z])(?:tel|ani|dnis|cli))[ :="'/<(\[.]{1,4}$`)},
		{party, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:from|to|target|number)[ :="'/<(\[.]{1,4}$`)},
		{list, regexp.MustCompile(`\[$`)},
	}
)

// Contexts of a number.
const (
	unknown = iota // not evaluated yet
	nothing        // none of the others
	clock          // a time
	uri            // tel: or sip:
	plus           // after a plus
	named          // after a word that phone numbers follow
	party          // a word such as from or to, which also precedes other values
	list           // a JSON array
)

// contextOf returns the context of a number after the text before, in a field called
// name.
func contextOf(before, name string) int {
	const window = 40 // bytes before the number that are searched
	if len(before) > window {
		before = before[len(before)-window:]
	} else if name != "" {
		before = name + "=" + before
	}
	for _, c := range contexts {
		if c.pattern.MatchString(before) {
			return c.context
		}
	}
	return nothing
}

// isPhone decides by the format of a number, its context and the two bytes after
// it.
func isPhone(number, after string, digits, context int) bool {
	switch {
	case context == clock, notPhone.MatchString(number):
		return false
	case context == uri:
		return endsNumber.MatchString(after) || after[0] == '-'
	case digits < minDigits:
		return false
	case context == plus:
		return true
	case !endsNumber.MatchString(after):
		return false
	case context == named:
		return true
	case formatted.MatchString(number):
		return number[0] == '0' || number[0] == '(' || context != list
	}
	return context == party && ungrouped.MatchString(number) && !timestamp.MatchString(number)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
}

// wordEnd returns the end of the word at i. Words include dots, hyphens, and
// slashes after digits, so that UUIDs, versions, host names and dates are one
// word.
func wordEnd(s string, i int) int {
	for i < len(s) && (isWord(s[i]) || s[i] == '.' || s[i] == '-' || s[i] == '/' && i > 0 && isDigit(s[i-1])) {
		i++
	}
	return i
}
