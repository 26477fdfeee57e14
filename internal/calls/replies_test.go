package calls

import (
	"maps"
	"slices"
	"testing"

	"telapi/internal/kv"
	"telapi/test/testkit"
)

// The scripts and this package use the same words.
func TestReplyWordsOfScripts(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, name := range []string{"claim", "check_claim", "commit", "send", "confirm", "end_channel", "await", "cancel"} {
		texts = append(texts, kv.Script(name))
	}
	words, known := testkit.ReplyWords(texts...), slices.Sorted(maps.Keys(replyErrors))
	if !slices.Equal(words, known) {
		t.Errorf("scripts reply with\n%v, known are\n%v", words, known)
	}
}
