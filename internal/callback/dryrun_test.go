package callback

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// TestGoldenStreams tries the streams in testdata/streams.txt. Each has a title, the body, a line of
// three dashes, and its effects.
func TestGoldenStreams(t *testing.T) {
	const file, title = "testdata/streams.txt", "=== "
	raw, err := os.ReadFile(file)
	testkit.Must(t, err)
	var all strings.Builder
	for section := range strings.SplitSeq(strings.TrimPrefix(string(raw), title), "\n"+title) {
		input, want, _ := strings.Cut(section, separator)
		name, body, _ := strings.Cut(input, "\n")
		kind, settings, _ := strings.Cut(name, ", ")
		trial := Trial{Kind: wire.WorkItemKind(kind), Body: []byte(body), MediaType: NDJSON, PerDelta: strings.Contains(settings, "each delta:"), ChannelID: "c"}
		if strings.HasPrefix(settings, "events") {
			trial.MediaType = EventStream
		}
		got := effects(t, trial)
		if all.WriteString(title + input + separator + got + "\n"); !*update {
			testkit.Equal(t, name, got, strings.TrimSuffix(want, "\n"))
		}
	}
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(all.String()), 0o644))
	}
}

// effects returns the entries of a trial, without what they have in common, decisions and
// warnings, or the error and its issues.
func effects(t *testing.T, trial Trial) string {
	result, err := Try(trial, policy(t, "open"), time.UnixMilli(1))
	lines := testkit.Issues(err)
	if err != nil {
		lines = append([]string{fmt.Sprintf("%s: %s", fault.From(err).Code, fault.From(err).Message)}, lines...)
	}
	checkRoundTrip(t, result.Entries)
	for _, e := range result.Entries {
		raw, err := json.Marshal(&e)
		testkit.Must(t, err)
		lines = append(lines, strings.Replace(string(raw), fmt.Sprintf(`,"channelId":"c","at":1,"source":%q`, trial.Kind.Source()), "", 1))
	}
	for _, d := range result.Decisions {
		lines = append(lines, d.Type+" "+d.Decision)
	}
	for _, w := range result.Warnings {
		lines = append(lines, w.String())
	}
	return strings.Join(lines, "\n")
}
