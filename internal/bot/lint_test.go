package bot

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"telapi/callruntime/wire"
)

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
		`{` + id + `,"error":{"code":"a","message":"b","x":1},"metadata":{"x":1}}`: {wire.BotItem, nil},
		`{"content":"x","actions":[],"commands":[{"type":"hangup","why":1}]}`: {wire.LLMItem, []string{
			`/actions: "actions" has no effect. Did you mean "commands"?`,
			`/commands/0/why: "why" has no effect.`,
		}},
		`{"anything":1}`: {wire.ToolItem, nil},
		`{"error":{"code":"a","message":"b"},"conversation":{"identifier":{"ID":"c"}}}`: {wire.ToolItem, []string{
			`/conversation/identifier/ID: "ID" has no effect. Did you mean "id"?`,
		}},
		`{` + id + `,"messages":{"message":[{"sequence":2,"content":{"event":{"pause":1,"wait":1,"custom":{"name":"config","value":{"target":"tel:1"}}}}},{"sequence":1,"content":{}}]}}`: {wire.BotItem, []string{
			`/messages/message/0/content/event/wait: "wait" has no effect.`,
			`/messages/message/0/content/event/custom/value/target: "target" has no effect.`,
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
		for _, w := range result.Ignored([]byte(body)) {
			ignored = append(ignored, w.String())
		}
		for _, w := range tt.want {
			if !strings.HasPrefix(w, "/actions/") && !strings.HasPrefix(w, "/commands/") && !strings.Contains(body, `"name":"hangup"`) {
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
