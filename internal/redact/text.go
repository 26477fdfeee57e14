package redact

import (
	"regexp"
	"strings"
)

// Text takes credentials out of free text: API keys (their public id stays),
// JWTs, callback tokens, values after an authentication scheme, values of names such as token or
// password, and passwords in URLs. Text without any of them is returned as it
// is, without a copy.
func Text(s string) string {
	found := scan(s)
	for i := 0; found != 0; i, found = i+1, found>>1 {
		if found&1 != 0 {
			s = rules[i].clean(s)
		}
	}
	return s
}

// Field is Text, with phone numbers masked, for a value that has a name: a name that means a
// secret hides the value whole, and one that means a phone number lets bare
// digits count as one.
func Field(name, value string, keep int) string {
	if value != "" && IsSecretName(name) {
		return Placeholder
	}
	return phones(Text(value), name, keep)
}

// IsSecretName tells whether a field, header or parameter of that name holds a secret.
func IsSecretName(name string) bool {
	for _, n := range secretNames {
		if len(name) >= len(n) && hasPrefixFold(name[len(name)-len(n):], n) {
			return true
		}
	}
	return false
}

var secretNames = strings.Fields("token secret password passwd passphrase pwd apikey api_key api-key authorization cookie cookies " +
	"credential credentials jwt privatekey private_key")

// rule hides the last group of every match, unless its judge says otherwise.
// It runs only on text that has one of its words, which costs little to find
// out; most lines have none.
type rule struct {
	words string
	find  *regexp.Regexp
	hides func(groups []string) bool
}

// rules, in the order in which they run.
var rules = []rule{
	// The second form is a password with a slash that should have been escaped:
	// such a URL does not parse, and parsers quote it in their errors.
	{"://", regexp.MustCompile(`(://[^\s/?#@:"'<>]*:)([^\s/?#"'<>]*|\d*[^\s/?#"'<>\d][^\s"'<>]*)@`), always},
	{"bearer basic", regexp.MustCompile(`(?i)\b(bearer|basic)(?:\s+|%20)([^\s"'\\]+)`), schemeValue},
	{"eyj eya ewo", regexp.MustCompile(`()((?:eyJ|eyA|ewo)[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?)`), always},
	{"tk_", regexp.MustCompile(`(tk_[A-Za-z0-9]+_)([A-Za-z0-9_-]+)`), always},
	{"cbt_", regexp.MustCompile(`(cbt_)([A-Za-z0-9_-]{16,})`), always},
	{"cookie", regexp.MustCompile(`(?i)(cookies?)\\*["']?\s*[:=]\s*[\["'\\]*([^\r\n"'\\\[\]]+)`), unmarked},
	{"token secret passw passphrase pwd apikey api_key api-key authorization credential jwt private",
		regexp.MustCompile(`(?i)(token|secret|password|passwd|passphrase|pwd|api[_-]?key|authorization|credentials?|jwt|private_?key)` +
			`(?:\\*["'])?(?:(\s*(?:=>?|:|%3D)\s*)\[?(\\+"[^"]*|"(?:[^"\\]|\\.)*|'[^']*|[^\s&"']+)|\s+["']?([^\s&"']+))`), pairValue},
}

func (r rule) clean(s string) string {
	var out strings.Builder
	done := 0
	for at := 0; ; {
		m := r.find.FindStringSubmatchIndex(s[at:])
		if m == nil {
			break
		}
		groups := make([]string, 0, 5)
		value := 0 // the last group that took part
		for i := 2; i < len(m); i += 2 {
			if m[i] < 0 {
				groups = append(groups, "")
				continue
			}
			groups, value = append(groups, s[at+m[i]:at+m[i+1]]), i
		}
		quoted := s[at+m[value] : at+m[value+1]]
		from, to := at+m[value+1]-len(strings.TrimLeft(quoted, `\"'`)), at+m[value+1]
		// What follows a name may itself be a name with a value, so the search
		// goes on after the name; after a long value behind it, to stay linear.
		at += max(m[3], m[0]+1)
		if !r.hides(groups) || to <= done {
			continue
		}
		if from >= done {
			out.WriteString(s[done:from])
			out.WriteString(Placeholder)
		}
		if done = to; to-from > 64 {
			at = to
		}
	}
	out.WriteString(s[done:])
	return out.String()
}

func always([]string) bool { return true }

var (
	marked = regexp.MustCompile(`^[\\"']*(?:tk_[A-Za-z0-9]+_?)?(?:\[?redacted[^A-Za-z0-9]*)?$`)
	prose  = regexp.MustCompile(`(?i)^(?:tokens?|auth|authentication|authorization|scheme|values?|headers?|credentials?|jwts?)[.,:;)]*$`)
	opaque = regexp.MustCompile(`^[A-Za-z0-9_.~+=-][A-Za-z0-9_.~+/=-]{15,}$`)
	uuid   = regexp.MustCompile(`(?i)^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// unmarked spares what an earlier rule or run cleaned.
func unmarked(groups []string) bool { return !marked.MatchString(groups[len(groups)-1]) }

// schemeValue keeps prose such as "Bearer authentication" readable.
func schemeValue(groups []string) bool {
	name, value := groups[0], groups[1]
	return !prose.MatchString(value) && (strings.EqualFold(name, "bearer") || looksSecret(value) || strings.HasSuffix(value, "="))
}

// pairValue hides what is assigned to a secret's name whatever it looks like;
// after a word or a colon of prose ("verify token: signature is invalid") only
// what looks like a credential.
func pairValue(groups []string) bool {
	name, sep, assigned, next := groups[0], groups[1], groups[2], groups[3]
	switch {
	case next != "":
		return looksSecret(strings.TrimRight(next, ".,:;)]}"))
	case marked.MatchString(assigned):
		return false
	case strings.TrimSpace(sep) != ":", sep == ":", strings.ContainsAny(assigned[:1], `\"'`), hasPrefixFold(name, "passw"):
		return true
	}
	return looksSecret(strings.TrimRight(assigned, ".,:;)]}"))
}

func looksSecret(v string) bool {
	if !opaque.MatchString(v) || uuid.MatchString(v) {
		return false
	}
	mixed := strings.ToLower(v) != v && strings.ToUpper(v) != v
	return strings.ContainsAny(v, "0123456789") || mixed && len(v) >= 40
}

// clues lists the rules' words by their first letter. The set of their second
// letters spares looking at most words of a line.
var clues = func() (table [256]struct {
	second uint32
	words  []clue
}) {
	for i, r := range rules {
		for word := range strings.FieldsSeq(r.words) {
			for _, first := range []byte{word[0], strings.ToUpper(word)[0]} {
				table[first].second |= 1 << (word[1] & 31)
				table[first].words = append(table[first].words, clue{word[1:], 1 << i})
			}
		}
	}
	return table
}()

// clue is what follows a word's first letter, and the rule it speaks for.
type clue struct {
	rest string
	rule uint
}

// scan returns the set of rules that have a word in s.
func scan(s string) (found uint) {
	for i := range len(s) - min(len(s), 1) {
		if c := &clues[s[i]]; c.second>>(s[i+1]&31)&1 != 0 {
			for _, w := range c.words {
				if hasPrefixFold(s[i+1:], w.rest) {
					found |= w.rule
				}
			}
		}
	}
	return found
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
