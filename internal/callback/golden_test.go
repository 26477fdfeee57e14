package callback

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const separator = "\n---\n"

// TestGoldenBodies parses the callback bodies in testdata/golden. Each file has a
// body, a line of three dashes, and the resulting entries and ignored members, or the
// issues. Lines before the body that start with # are comments, or set the route, profile or transaction.
func TestGoldenBodies(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("found %d golden files, want at least 60; error: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			testkit.Must(t, err)
			input, want, _ := strings.Cut(string(raw), separator)
			got := parseGolden(t, input)
			if *update {
				testkit.Must(t, os.WriteFile(file, []byte(input+separator+got), 0o644))
			} else if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// parseGolden parses the input part of a golden file and returns the output part.
func parseGolden(t *testing.T, input string) string {
	settings := map[string]string{"route": "bot", "profile": "open", "transaction": ""}
	for strings.HasPrefix(input, "#") {
		var line string
		line, input, _ = strings.Cut(input, "\n")
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok {
			settings[name] = value
		}
	}
	base := wire.Entry{ChannelID: "ch-1", At: 1, Trace: wire.Trace{TransactionID: settings["transaction"]}}
	kind := wire.WorkItemKind(settings["route"])
	base.Source = kind.Source()
	result, err := Parse(kind, []byte(input), "ch-1")
	var out strings.Builder
	if err != nil {
		f := fault.From(err)
		out.WriteString(string(f.Code) + "\n")
		issues, _ := f.Details.([]fault.Issue)
		for _, i := range issues {
			out.WriteString(i.Path + " " + i.Code + " " + i.Message + "\n")
		}
		return out.String()
	}
	entries, decisions := result.Entries(base, policy(t, settings["profile"]))
	checkRoundTrip(t, entries)
	for _, e := range entries {
		line, err := json.Marshal(&e)
		testkit.Must(t, err)
		out.Write(append(line, '\n'))
	}
	for _, d := range decisions {
		if len(d.Ignored) > 0 {
			out.WriteString("ignored in " + d.Command.Common().Type + ": " + strings.Join(d.Ignored, ", ") + "\n")
		}
	}
	return out.String()
}

// policy returns the command policy in a file of testdata/profiles.
func policy(t testing.TB, name string) *command.Policy {
	raw, err := os.ReadFile("testdata/profiles/" + name + ".json")
	testkit.Must(t, err)
	var file struct {
		Profile  wire.GatewayProfile `json:"profile"`
		Platform struct {
			CommandsDisabled       []string `json:"commandsDisabled"`
			TransferAllowedTargets []string `json:"transferAllowedTargets"`
			TransferAllowedHeaders []string `json:"transferAllowedHeaders"`
		} `json:"platform"`
	}
	testkit.Must(t, json.Unmarshal(raw, &file))
	platform, err := command.NewPlatformPolicy(file.Platform.CommandsDisabled, file.Platform.TransferAllowedTargets, file.Platform.TransferAllowedHeaders)
	testkit.Must(t, err)
	return command.NewPolicy(file.Profile, platform)
}

// checkRoundTrip checks that entries are unchanged after encoding and decoding.
func checkRoundTrip(t *testing.T, entries []wire.Entry) {
	for _, e := range entries {
		encoded, err := json.Marshal(&e)
		if err != nil {
			t.Fatalf("encode %+v: %v", e, err)
		}
		var decoded wire.Entry
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			t.Fatalf("decode %s: %v", encoded, err)
		}
		again, err := json.Marshal(decoded, json.Deterministic(true))
		if err != nil || string(again) != string(encoded) {
			t.Fatalf("round trip of %s: got %s, %v", encoded, again, err)
		}
	}
}

func TestLintReportsMembersWithoutEffect(t *testing.T) {
	const id = `"conversation":{"identifier":{"id":"c"}}`
	for body, tt := range map[string]struct {
		kind wire.WorkItemKind
		want []string
	}{
		`{` + id + `,"action":{"type":"hangup"},"commands":[],"error":1}`: {wire.BotItem, []string{
			`/action: "action" has no effect. Did you mean "actions"?`,
			`/commands: "commands" has no effect. Did you mean "actions"?`,
			`/error: "error" has no effect.`,
		}},
		`{` + id + `,"channelData":[{"key":"k","x":1}],"metadata":{"x":1},"nluData":{"x":1},"messages":{"message":[{"content":{"activityParams":{"x":1}}}]}}`: {wire.BotItem, nil},
		`{` + id + `,"messages":{"message":[{"text":"x","content":{"textPlain":"x","event":{"custom":{"name":"config","value":{"sessionParam":{}}}}}}]}}`: {wire.BotItem, []string{
			`/messages/message/0/text: "text" has no effect.`,
			`/messages/message/0/content/textPlain: "textPlain" has no effect.`,
			`/messages/message/0/content/event/custom/value/sessionParam: "sessionParam" has no effect. Did you mean "sessionParams"?`,
		}},
		`{` + id + `,"actions":[{"type":"hangup","hangupReason":"r","reasons":"r"},{"type":"fly","x":1},{"type":"update_stt_config","config":{"x":1},"config.retries":1}]}`: {wire.BotItem, []string{
			`/actions/0/reasons: "reasons" has no effect. Did you mean "reason"?`,
			`/actions/2/config.retries: "config.retries" has no effect.`,
		}},
		`{` + id + `,"actions":{"type":"transfer","Target":"tel:1"}}`: {wire.BotItem, []string{
			`/actions/Target: "Target" has no effect. Did you mean "target"?`,
		}},
		`{` + id + `,"actions":[{"type":"hangup","hangupReason":"r","reason":"s"},{"type":"transfer","target":"tel:1","transferTarget":"tel:2"},{"type":"hangup","hangupReason":"","reason":"s"},{"type":"transfer","target":null,"transferTarget":"tel:2"}]}`: {wire.BotItem, []string{
			`/actions/0/reason: "reason" has no effect, because its other name is given too.`,
			`/actions/1/target: "target" has no effect, because its other name is given too.`,
		}},
		`{` + id + `,"messages":{"message":[{"content":{"event":{"custom":{"name":"handover","value":{"transferTarget":"tel:1","target":"tel:2"}}}}}]}}`: {wire.BotItem, []string{
			`/messages/message/0/content/event/custom/value/target: "target" has no effect, because its other name is given too.`,
		}},
		`{` + id + `,"error":{"code":"a","message":"b","x":1},"metadata":{"x":1}}`: {wire.BotItem, nil},
		`{"content":"x","actions":[],"commands":[{"type":"hangup","why":1}]}`: {wire.LLMItem, []string{
			`/actions: "actions" has no effect. Did you mean "commands"?`,
			`/commands/0/why: "why" has no effect.`,
		}},
		`{"anything":1}`: {wire.ToolItem, nil},
		`{"error":{"code":"a","message":"b"},"conversation":{"identifier":{"ID":"c"}}}`: {wire.ToolItem, []string{
			`/conversation/identifier/ID: "ID" has no effect. Did you mean "id"?`,
		}},
		`{` + id + `,"messages":{"message":[{"sequence":2,"content":{}},{"sequence":1,"content":{"event":{"pause":1,"wait":1,"custom":{"name":"config","value":{"target":"tel:1"}}}}}]}}`: {wire.BotItem, []string{
			`/messages/message/1/content/event/wait: "wait" has no effect.`,
			`/messages/message/1/content/event/custom/value/target: "target" has no effect.`,
		}},
		`{` + id + `,"messages":{"message":[{"content":{"event":{"custom":{"name":"hangup","value":{"target":"tel:1","hangupReason":"r","transferMethod":"sip_bye"}}}}}]}}`: {wire.BotItem, []string{
			`/messages/message/0/content/event/custom/value/target: "target" has no effect.`,
		}},
		`{"content":[{"type":"text","text":"a"},{"type":"image"}],"message":{"role":"x","content":"b"},"choices":[{"message":{"content":"c"}},{}]}`: {wire.LLMItem, []string{
			`/message/role: "role" has no effect.`,
			`/content/1: Has no effect: it has no text.`,
			`/message/content: Has no effect: the body has another content.`,
			`/choices/0/message/content: Has no effect: the body has another content.`,
			`/choices/1: Has no effect: only the first choice is used.`,
		}},
	} {
		result, err := Parse(tt.kind, []byte(body), "c")
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		var got, ignored, wantIgnored []string
		for _, w := range result.lint([]byte(body)) {
			got = append(got, w.String())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: warnings\n%s\nwant\n%s", body, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
		// Those of commands are in the list of each command.
		for _, w := range result.lintOutsideCommands([]byte(body)) {
			ignored = append(ignored, w.String())
		}
		for _, w := range tt.want {
			ofCommand := strings.Contains(body, `"name":"hangup"`) || strings.Contains(body, `"name":"handover"`)
			if !strings.HasPrefix(w, "/actions/") && !strings.HasPrefix(w, "/commands/") && !ofCommand {
				wantIgnored = append(wantIgnored, w)
			}
		}
		if !slices.Equal(ignored, wantIgnored) {
			t.Errorf("%s: ignored\n%s\nwant\n%s", body, strings.Join(ignored, "\n"), strings.Join(wantIgnored, "\n"))
		}
	}
}

func TestWarningsAreBounded(t *testing.T) {
	var members, events strings.Builder
	for i := range 200 {
		fmt.Fprintf(&members, `,"x%d%s":1`, i, strings.Repeat("é", 500))
		events.WriteString(`,{"content":{"event":{"custom":{"name":"config","value":{"a":1,"b":1}}}}}`)
	}
	const id = `{"conversation":{"identifier":{"id":"c"}}`
	for name, body := range map[string]string{
		"members": id + members.String() + "}",
		"events":  id + `,"messages":{"message":[` + events.String()[1:] + `]}}`,
		"actions": id + `,"actions":[` + strings.Repeat(`{"type":"hangup"`+members.String()+`},`, 50) + `{}]}`,
	} {
		result, err := Parse(wire.BotItem, []byte(body), "c")
		if err != nil {
			t.Fatal(name, err)
		}
		warnings := result.lint([]byte(body))
		if len(warnings) != 100 || len(warnings[0].Path)+len(warnings[0].Message) > 400 {
			t.Errorf("%s: %d warnings, the first %s; want 100 short ones", name, len(warnings), warnings[0])
		}
	}
}
