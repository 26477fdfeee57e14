package testkit

import (
	"regexp"
	"slices"
	"strings"
)

var (
	compared  = regexp.MustCompile(`[=~]= '[^']*'`)
	replyWord = regexp.MustCompile(`'([a-z_]{3,})'`)
)

// ReplyWords returns the words with which Lua scripts reply, sorted.
func ReplyWords(scripts ...string) (words []string) {
	for line := range strings.SplitSeq(strings.Join(scripts, "\n"), "\n") {
		if !regexp.MustCompile(`\breturn\b|\boutcomes\[.*\] = |\b(rejection|refusal) = `).MatchString(line) {
			continue
		}
		for _, m := range replyWord.FindAllStringSubmatch(compared.ReplaceAllString(line, ""), -1) {
			words = append(words, m[1])
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}
