package style

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// phrases are expressions that readers have stumbled over, and replacements. The
// list is about vocabulary; reviewers check the grammar.
var phrases = []struct{ pattern, instead string }{
	{`over its time|(has|have|had) had its time|its time is over`, "expired, timed out"},
	{`whoever|whomever`, "name the subject: the caller, the client, the runtime"},
	{`whatever (is|was|has|had|came|comes|they|it|he|she)`, "name the thing"},
	{`(is|are|was|were) no (valid )?(JSON|URL|UUID|ID|id|number|integer|channel|session|token|key|object|string|duration|list)`, `"is not a valid …"`},
	{`there (is|was|are|were) no such|there's no such`, `"not found" or "unknown …"`},
	{`(?-i:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody)`, "name the party: the client, other instances, callers"},
	{`mend|mends|mended|mending`, "fix"},
	{`(let|lets|letting) go of`, "release, close, delete"},
	{`(give|gives|gave|given|giving) (it |them |one |an item )?up`, "cancel, release, stop, time out"},
	{`bury|buries|buried`, "end, delete"},
	{`(is|are|was|were|be|been) told( of)?`, "is notified, receives, gets"},
	{`onlooker|onlookers|overhear|overhears`, "observer"},
	{`a twin|its twin|twins`, "a concurrent duplicate, a copy"},
	{`the way of a|the ways`, "data flow"},
	{`(house|floor) rules?|on no floor`, "architecture, layers"},
	{`janitor|bookkeeper|onlooker`, "cleaner, consumer, observer"},
	{`this very|the very (same|one|result)`, "the same"},
	{`needs a command of its own`, `"missing subcommand: use …"`},
	{`made up`, "generated, random"},
	{`vouch(es|ed)? for`, "signed by, trusts, confirms"},
	{`stands? over`, "overrides, restricts"},
	{`hand(s|ed)? on`, "pass, forward"},
	{`at the most`, "at most"},
	{`as it (is|was) said`, "name the condition"},
}

// proseExtensions are the extensions of files that people read.
var proseExtensions = []string{".go", ".md", ".lua", ".sql", ".sh", ".ts", ".html", ".yaml", ".yml", ".cfg", ".conf", ".service"}

func TestTextsUsePlainWords(t *testing.T) {
	patterns := make([]string, len(phrases))
	for i, p := range phrases {
		patterns[i] = "(" + p.pattern + ")"
	}
	// One pass over the text finds all phrases; suggestion finds out which it is.
	anyPhrase := regexp.MustCompile(`(?i)\b(?:` + strings.Join(patterns, "|") + `)\b`)
	for name, text := range sources(t) {
		if !slices.Contains(proseExtensions, path.Ext(name)) || strings.HasPrefix(name, "test/style/") {
			continue
		}
		// A phrase may be broken across lines and comment markers.
		joined := lineBreak.ReplaceAllFunc(text, func(b []byte) []byte { return bytes.Repeat([]byte(" "), len(b)) })
		for _, at := range anyPhrase.FindAllIndex(joined, -1) {
			found := string(joined[at[0]:at[1]])
			line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
			t.Errorf("%s:%d: %q: write %s", name, line, strings.Join(strings.Fields(found), " "), suggestion(found))
		}
	}
}

var lineBreak = regexp.MustCompile(`\n[ \t]*(//|--|#|\*)?[ \t]*`)

// suggestion returns the replacement of a phrase.
func suggestion(found string) string {
	found = strings.Join(strings.Fields(found), " ")
	for _, p := range phrases {
		if regexp.MustCompile(`(?i)^(?:` + p.pattern + `)$`).MatchString(found) {
			return p.instead
		}
	}
	return "it plainly"
}

func TestPhrasesAreFound(t *testing.T) {
	for found, want := range map[string]string{
		"Whoever": phrases[1].instead, "is no channel": phrases[3].instead, "gives it up": "cancel, release, stop, time out",
	} {
		if got := suggestion(found); got != want {
			t.Errorf("suggestion for %q is %q, want %q", found, got, want)
		}
	}
}
