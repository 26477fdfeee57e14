// Package redact removes secrets and phone numbers from logs, traces and metrics.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"log/slog"
	"regexp"
	"slices"
	"strings"
)

// Text replaces credentials in free text: the secret part of API keys, JWTs,
// callback tokens, values after an authentication scheme, values of names such as
// token or password, cookies, and passwords in URLs. Text without credentials is
// returned without a copy.
func Text(s string) string {
	applicable := scan(s)
	for i, rule := range rules {
		if applicable&(1<<i) != 0 {
			s = rule.apply(s)
		}
	}
	return s
}

// Excerpt returns the start of another service's message on one line. The message may
// quote the secrets of the request.
func Excerpt(message []byte, maxCharacters int, secrets ...string) string {
	s := strings.ToValidUTF8(string(message), "")
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, Placeholder)
		}
	}
	s = Text(strings.Join(strings.Fields(s), " "))
	if runes := []rune(s); len(runes) > maxCharacters {
		s = string(runes[:maxCharacters]) + "…"
	}
	return s
}

// Field redacts the value of a named field. The whole value of a secret is
// replaced. Phone numbers are masked except for their last keep digits; the name
// helps to recognize them.
func Field(name, value string, keep int) string {
	if value != "" && IsSecretName(name) {
		return Placeholder
	}
	if len(value) >= minDigits && len(value) <= maxDigits && isDigit(value[0]) && whole.MatchString(value) && numberNames.MatchString(name) {
		number := []byte(value)
		mask(number, keep)
		return string(number)
	}
	return maskPhones(Text(value), name, keep)
}

// IsSecretName reports whether a field, header or parameter holds a secret.
func IsSecretName(name string) bool {
	return slices.ContainsFunc(secretNames, func(suffix string) bool {
		return len(name) >= len(suffix) && strings.EqualFold(name[len(name)-len(suffix):], suffix)
	})
}

// secretNames are the endings of names of secrets.
var secretNames = strings.Fields("token secret password passwd passphrase pwd apikey api_key api-key authorization cookie cookies " +
	"credential credentials jwt privatekey private_key")

// rule replaces the last group of every match for which isSecret returns true.
// Rules run only on text that contains one of their keywords, which few lines do.
type rule struct {
	keywords string         // in lower case, separated by spaces
	pattern  *regexp.Regexp // groups: the name, then further groups, then the value
	isSecret func(groups []string) bool
}

// rules run in this order.
var rules = []rule{
	// The second alternative is a password with an unescaped slash. Such a URL is
	// invalid, and parsers quote it in their errors.
	{"://", regexp.MustCompile(`(://[^\s/?#@:"'<>]*:)([^\s/?#"'<>]*|\d*[^\s/?#"'<>\d][^\s"'<>]*)@`), always},
	{"bearer basic", regexp.MustCompile(`(?i)\b(bearer|basic)(?:\s+|%20)((?:[^\s"'\\%]|%[^2]|%2[^0])+)`), schemeValue},
	// JWTs: base64 of {", "{ " or "{" with a line break. They need no name, so that group is empty.
	{"eyj eya ewo", regexp.MustCompile(`()((?:eyJ|eyA|ewo)[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?)`), always},
	{"tk_", regexp.MustCompile(`(tk_[A-Za-z0-9]+_)([A-Za-z0-9_-]+)`), always},
	{"cbt_", regexp.MustCompile(`(cbt_)([A-Za-z0-9_-]{16,})`), always},
	{"cookie", regexp.MustCompile(`(?i)(cookies?)\\*["']?\s*[:=]\s*[\["'\\]*([^\r\n"'\\\[\]]+)`), notRedacted},
	{"token secret passw passphrase pwd apikey api_key api-key authorization credential jwt private",
		regexp.MustCompile(`(?i)(token|secret|password|passwd|passphrase|pwd|api[_-]?key|authorization|credentials?|jwt|private_?key)` +
			`(?:\\*["'])?(?:(\s*(?:=>?|:|%3D)\s*)\[?(\\+"[^"]*|"(?:[^"\\]|\\.)*|'[^']*|[^\s&"']+)|\s+["']?([^\s&"']+))`), pairValue},
}

func (r rule) apply(s string) string {
	var out strings.Builder
	done := 0 // end of the text that is copied or replaced
	for m := range r.matches(s) {
		if !m.secret || m.to <= done {
			continue
		}
		if m.from >= done {
			out.WriteString(s[done:m.from])
			out.WriteString(Placeholder)
		}
		done = m.to
	}
	out.WriteString(s[done:])
	return out.String()
}

// match is a match of a rule. Matches can overlap, because the value of a name
// can be a name with a value.
type match struct {
	searched int // bytes up to the end of the match, for a test of the cost
	from, to int // bounds of the value
	secret   bool
}

// longValue is the length from which the inside of a secret value is skipped, so
// that the cost of overlapping matches is linear.
const longValue = 64

// matches returns all matches, in order of their start.
func (r rule) matches(s string) iter.Seq[match] {
	return func(yield func(match) bool) {
		for at, done := 0, 0; ; {
			index := r.pattern.FindStringSubmatchIndex(s[at:])
			if index == nil {
				return
			}
			groups := make([]string, 0, 5)
			from, to := 0, 0 // the value: the last group that has matched
			for i := 2; i < len(index); i += 2 {
				group := ""
				if index[i] >= 0 {
					from, to = at+index[i], at+index[i+1]
					group = s[from:to]
				}
				groups = append(groups, group)
			}
			from = to - len(strings.TrimLeft(s[from:to], `\"'`)) // without quotes
			found := match{index[1], from, to, r.isSecret(groups)}
			if !yield(found) {
				return
			}
			at += max(index[3], index[0]+1) // continue after the name
			if found.secret && to > done {
				done = to
				if to-from > longValue {
					at = done
				}
			}
		}
	}
}

func always([]string) bool { return true }

var (
	redacted = regexp.MustCompile(`^[\\"']*(?:tk_[A-Za-z0-9]+_?)?(?:\[?redacted[^A-Za-z0-9]*)?$`)
	prose    = regexp.MustCompile(`(?i)^(?:tokens?|auth|authentication|authorization|scheme|values?|headers?|credentials?|jwts?)[.,:;)]*$`)
	opaque   = regexp.MustCompile(`^[A-Za-z0-9_.~+=-][A-Za-z0-9_.~+/=-]{15,}$`)
)

// notRedacted is false for values that are already redacted.
func notRedacted(groups []string) bool { return !redacted.MatchString(groups[len(groups)-1]) }

// schemeValue is false for prose such as "Bearer authentication".
func schemeValue(groups []string) bool {
	name, value := groups[0], groups[1]
	return !prose.MatchString(value) && (strings.EqualFold(name, "bearer") || looksSecret(value) || strings.HasSuffix(value, "="))
}

// pairValue is true for every value that is assigned to a secret name. After a space or a
// colon in prose ("verify token: signature is invalid") it is true only for values that
// look like a credential.
func pairValue(groups []string) bool {
	name, separator, assigned, next := groups[0], groups[1], groups[2], groups[3]
	switch {
	case next != "":
		return looksSecret(strings.TrimRight(next, ".,:;)]}"))
	case redacted.MatchString(assigned):
		return false
	case strings.TrimSpace(separator) != ":", separator == ":", strings.ContainsAny(assigned[:1], `\"'`), hasPrefixFold(name, "passw"):
		return true
	}
	return looksSecret(strings.TrimRight(assigned, ".,:;)]}"))
}

// looksSecret reports whether a value looks like a random string.
func looksSecret(value string) bool {
	if !opaque.MatchString(value) || len(value) == uuidLength && startsWithUUID(value) {
		return false
	}
	mixedCase := strings.ToLower(value) != value && strings.ToUpper(value) != value
	return strings.ContainsAny(value, "0123456789") || mixedCase && len(value) >= 40
}

// keywords lists the keywords of all rules by their first letter. The bit set of
// second letters rules out most words of a text quickly.
var keywords = func() (table [256]struct {
	secondLetters uint32
	words         []keyword
}) {
	for i, r := range rules {
		for word := range strings.FieldsSeq(r.keywords) {
			for _, first := range []byte{word[0], strings.ToUpper(word)[0]} {
				table[first].secondLetters |= 1 << (word[1] & 31)
				table[first].words = append(table[first].words, keyword{word[1:], 1 << i})
			}
		}
	}
	return table
}()

// keyword is a keyword of a rule without its first letter.
type keyword struct {
	rest string
	rule uint // bit of the rule
}

// scan returns the bit set of rules with a keyword in s that something follows.
func scan(s string) (found uint) {
	for i := range len(s) - min(len(s), 1) {
		if c := &keywords[s[i]]; c.secondLetters>>(s[i+1]&31)&1 != 0 {
			for _, word := range c.words {
				if rest := s[i+1:]; len(rest) > len(word.rest) && hasPrefixFold(rest, word.rest) {
					found |= word.rule
				}
			}
		}
	}
	return found
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// Placeholder replaces a secret.
const Placeholder = "[redacted]"

// Secret is a string that formats, logs and marshals as Placeholder. Only Reveal
// returns the value.
type Secret string

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

// Fingerprint returns the first 8 hex digits of HMAC-SHA-256(value,
// "telapi-fingerprint"), for comparing configurations without showing them. Consoles
// compute it too.
func (s Secret) Fingerprint() string {
	if s == "" {
		return "none"
	}
	mac := hmac.New(sha256.New, []byte(s))
	mac.Write([]byte("telapi-fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Placeholder
}

// GoString keeps %#v from printing the value.
func (s Secret) GoString() string { return s.String() }

// LogValue keeps slog from printing the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps encoders from writing the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
