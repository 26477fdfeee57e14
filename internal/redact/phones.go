package redact

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/google/uuid"
)

// maskPhones masks all but the last keep digits of the phone numbers in s. The
// length of s does not change. name is the key under which s is logged, or empty.
// A number is a phone number if
//   - it follows a plus, tel: or sip:,
//   - it has a trunk zero or one of the usual groupings,
//   - it follows a word such as "caller" in s, or name is such a word, or
//   - it is the whole ID of a call or channel, or the whole value of from, to or
//     target.
//
// Other digits are IDs, counts or timestamps.
func maskPhones(s, name string, keep int) string {
	var masked []byte // a copy of s; nil if it has no phone number
	inWord := false   // the previous byte belongs to a word; a plus after it does not start a number
	for i := 0; i < len(s); {
		c, next := s[i], i+1
		switch {
		case isDigit(c) && startsWithUUID(s[i:]): // in most paths; the checks of a number are slow
			next, inWord = i+uuidLength, true
		case isDigit(c), c == '(', c == '+' && !inWord, c == '%' && hasPrefixFold(s[i:], "%2b"):
			body := i + plusLength[c]
			if end := numberEnd(s, i, body, name); end > 0 {
				if masked == nil {
					masked = []byte(s)
				}
				mask(masked[body:end], keep)
				next = end
			} else if isDigit(c) {
				next = wordEnd(s, i)
			}
			inWord = isDigit(c) && isWord(s[next-1])
		case isWord(c):
			next = wordEnd(s, i)
			inWord = isWord(s[next-1])
		case c == '%' && i+2 < len(s) && isWord(s[i+1]) && isWord(s[i+2]):
			next, inWord = i+len("%20"), false
		default:
			inWord = false
		}
		i = next
	}
	if masked == nil {
		return s
	}
	return string(masked)
}

// plusLength is the length of a plus, by its first byte.
var plusLength = [256]int{'+': len("+"), '%': len("%2b")}

// mask replaces all but the last keep digits with asterisks.
func mask(number []byte, keep int) {
	for i, c := range slices.Backward(number) {
		if isDigit(c) {
			if keep <= 0 {
				number[i] = '*'
			}
			keep--
		}
	}
}

const (
	maxDigits      = 15 // of a phone number, the limit of E.164
	minDigits      = 7  // of a phone number outside of a URI; fewer are a status, a port or a count
	minDigitsInURI = 3  // after tel: or sip:
	usualDigits    = 11 // a space after so many ends a number: the next group is another value
	maxSeparator   = 3  // characters between two groups of digits, such as " / "
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
		isNextValue := digits >= usualDigits && strings.HasPrefix(s[separator:group], " ")
		digits += j - group
		if group == j || isNextValue || digits > maxDigits {
			return end
		}
		mayBeInURI := start > 0 && strings.IndexByte(":Aa/", s[start-1]) >= 0 // after tel:, sip%3A or PJSIP/
		if digits < minDigitsInURI || digits < minDigits && !mayBeInURI {
			continue
		}
		if context == unknown {
			context = contextOf(s[:start], name)
			if body > start && context != uri {
				context = plus
			}
		}
		if isPhone(s[body:j], s[j:min(j+2, len(s))], digits, context) {
			end = j
		}
	}
}

var (
	// notPhone matches IPv4 addresses, dates, versions, fractions and zero padding.
	notPhone = regexp.MustCompile(`^(?:(?:0|[1-9]\d{0,2})(?:\.(?:0|[1-9]\d{0,2})){3}(?:[^.\d]|$)|` +
		`(?:19|20)\d\d[-./]\d\d?[-./]\d|\d\d?[-./]\d\d?[-./](?:19|20)\d\d(?:\D|$)|\d\.\d(?:\D|$)|0\D|000)`)
	// formatted matches an area code in parentheses, a trunk zero, North American
	// numbers, groups of two or three digits, and a country code without a plus.
	formatted = regexp.MustCompile(`^(?:\(\d+\)|0\d|(?:1[-. ])?\d{3}[-. ]\d{3}[-. ]\d{4}$|\d{3}-\d{4}$|` +
		`\d\d(?: \d\d){3,4}$|\d{3} \d{3} \d{3}$|\d\d[- ]\d{2,3}[- ]\d{7,8}$)`)
	// endsNumber matches text that can follow a phone number. It rejects text that
	// continues an ID, a time, a fraction or a quantity with a unit.
	endsNumber = regexp.MustCompile(`^(?:$|-(?:\W|$)|[:./](?:\D|$)|[^\w:./-])`)
	// endsField matches text that can follow the whole value of a field, or a
	// segment of a path.
	endsField = regexp.MustCompile(`^(?:$|/|[.:-](?:\W|$)|[^\w.:-])`)
	// timestamp matches seconds, milliseconds and compact dates.
	timestamp = regexp.MustCompile(`^(?:1\d{9}|1\d{12}|(?:19|20)\d{12})$`)
	// ungrouped matches a number without separators.
	ungrouped = regexp.MustCompile(`^\d{10,15}$`)
	// whole matches a number that is the whole value of a field.
	whole = regexp.MustCompile(`^\d{7,15}$`)
	// numberNames matches the names of fields that may hold a phone number.
	numberNames = regexp.MustCompile(`(?i)(?:(?:call|channel)[_-]?id|(?:^|[^a-z])(?:call|channel|from|to|target))$`)

	// contexts are recognized by the text before a number. The first that matches counts.
	contexts = []struct {
		context numberContext
		pattern *regexp.Regexp
	}{
		{clock, regexp.MustCompile(`\d:$`)},
		{uri, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:(?:tel|sips?)(?::|%3a)|(?:pj)?sip/)$`)},
		{field, regexp.MustCompile(`(?i)(?:\\?["'](?:from|to|target)\\?["']\s*:\s*\\?["']?|(?:(?:call|channel)[ _-]?id|(?:^|[^a-z])channel)\\?["']?[ :="'/<(\[\\]{1,4}|` +
			`/webhooks/(?:bot|llm|tool)/(?:[^/\s]+/)?)$`)},
		{named, regexp.MustCompile(`(?i)(?:(?:phone|msisdn|caller|callee|dial|mobile)[a-z_-]*|(?:^|[^a-z])(?:tel|ani|dnis|cli))[ :="'/<(\[.]{1,4}$`)},
		{party, regexp.MustCompile(`(?i)(?:^|[^a-z])(?:from|to|target|number)[ :="'/<(\[.]{1,4}$`)},
		{list, regexp.MustCompile(`\[$`)},
	}
)

// numberContext is what the text before a number says about it.
type numberContext int

const (
	unknown numberContext = iota // not evaluated yet
	nothing                      // none of the others
	clock                        // a time
	uri                          // tel: or sip:
	plus                         // a plus
	field                        // the ID of a call or channel, or a JSON member from, to or target
	named                        // a word that phone numbers follow
	party                        // a word such as from or to, which also precedes other values
	list                         // a JSON array
)

// contextOf returns the context of a number after the text before, in a field called
// name.
func contextOf(before, name string) numberContext {
	const window = 40 // bytes before the number that are searched
	if len(before) > window {
		before = before[len(before)-window:]
	} else if name != "" {
		before = name + "=" + before
	}
	if !mayHaveContext(before) {
		return nothing
	}
	return matchContext(before)
}

func matchContext(before string) numberContext {
	for _, c := range contexts {
		if c.pattern.MatchString(before) {
			return c.context
		}
	}
	return nothing
}

// mayHaveContext reports whether before can match one of the contexts. It saves the
// slow expressions in texts that consist of short groups of digits.
func mayHaveContext(before string) bool {
	if before == "" || strings.IndexByte(" \t\n\f\r:=\"'/<([\\.Aa", before[len(before)-1]) < 0 {
		return false
	}
	return strings.IndexByte(":[", before[len(before)-1]) >= 0 || strings.ContainsFunc(before, unicode.IsLetter)
}

// mayBeFormatted reports whether a number can match formatted.
func mayBeFormatted(number string) bool {
	group := len(number) - len(strings.TrimLeft(number, "0123456789")) // digits at the start
	return group == 0 || number[0] == '0' || group <= 3 && group < len(number) && strings.IndexByte("-. ", number[group]) >= 0
}

// isPhone decides by the format of a number, its number of digits, its context and the
// two bytes after it.
func isPhone(number, after string, digits int, context numberContext) bool {
	switch {
	case context == clock, context == nothing && !mayBeFormatted(number), notPhone.MatchString(number):
		return false
	case context == uri:
		return endsNumber.MatchString(after) || after[0] == '-'
	case digits < minDigits:
		return false
	case context == plus:
		return true
	case context == field && whole.MatchString(number):
		return endsField.MatchString(after)
	case !endsNumber.MatchString(after):
		return false
	case context == named:
		return true
	case formatted.MatchString(number):
		return number[0] == '0' || number[0] == '(' || context != list
	}
	return context == party && ungrouped.MatchString(number) && !timestamp.MatchString(number)
}

const uuidLength = 36

func startsWithUUID(s string) bool {
	return len(s) >= uuidLength && uuid.Validate(s[:uuidLength]) == nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
}

// wordEnd returns the end of the word at start. Words include dots and hyphens, so
// that UUIDs, versions and host names are one word. Those that start with a digit
// include slashes after digits, for dates.
func wordEnd(s string, start int) int {
	i := start
	for i < len(s) && (isWord(s[i]) || s[i] == '.' || s[i] == '-' || s[i] == '/' && isDigit(s[start]) && isDigit(s[i-1])) {
		i++
	}
	return i
}
