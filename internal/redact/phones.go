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
			body := i
			switch c {
			case '+':
				body += len("+")
			case '%':
				body += len("%2b")
			}
			if end := numberEnd(s, i, body, name); end > 0 {
				if out == nil {
					out = []byte(s)
				}
				mask(out[body:end], keep)
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

// numberEnd returns the end of the phone number that starts at i and has its
// first digit at body, or 0. A number may have several groups of digits; the
// longest match counts.
func numberEnd(s string, i, body int, name string) (end int) {
	digits, context := 0, unknown
	for j := body; ; {
		gap := j
		for j < len(s) && j-gap < 3 && strings.IndexByte(" -./()", s[j]) >= 0 && (j == gap || s[j] != s[j-1]) {
			j++
		}
		from := j
		for j < len(s) && isDigit(s[j]) {
			j++
		}
		// A space after 11 digits ends a number: the next group is another value.
		complete := digits >= 11 && gap < len(s) && s[gap] == ' '
		digits += j - from
		if from == j || complete || digits > 15 { // the limit of E.164
			return end
		}
		if digits < 3 || digits < 7 && (i == 0 || s[i-1] != ':' && s[i-1] != 'A') {
			continue // a status, a port or a count; after tel:, sip: or %3A short numbers count
		}
		if context == unknown {
			if context = contextOf(s[:i], name); body > i && context != uri {
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
	bare      = regexp.MustCompile(`^\d{10,15}$`)

	// contexts are recognized by the text before a number.
	contexts = []struct {
		context int
		find    *regexp.Regexp
	}{
		{clock, regexp.MustCompile(`\d:$`)},
		{uri, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:(?:tel|sips?)(?::|%3a)|(?:pj)?sip/)$`)},
		{named, regexp.MustCompile(`(?i)(?:(?:phone|msisdn|caller|callee|dial|mobile)[a-z_-]*|(?:^|[^a-z])(?:tel|ani|dnis|cli))[ :="'/<(\[.]{1,4}$`)},
		{party, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:from|to|target|number)[ :="'/<(\[.]{1,4}$`)},
		{list, regexp.MustCompile(`\[$`)},
	}
)

const (
	unknown = iota // not evaluated yet
	nothing        // no context
	clock          // a time
	uri            // tel: or sip:
	plus
	named // a word that phone numbers follow
	party // a word such as from or to, which also precedes other values
	list  // a JSON array
)

func contextOf(before, name string) int {
	const window = 40 // bytes before the number that are searched
	if len(before) > window {
		before = before[len(before)-window:]
	} else if name != "" {
		before = name + "=" + before
	}
	for _, c := range contexts {
		if c.find.MatchString(before) {
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
	case digits < 7:
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
	return context == party && bare.MatchString(number) && !timestamp.MatchString(number)
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
