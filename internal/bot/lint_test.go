package bot

import (
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
	} {
		if _, err := Parse(tt.kind, []byte(body), "c"); err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		var got []string
		for _, w := range Lint(tt.kind, []byte(body)) {
			got = append(got, w.String())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: warnings\n%s\nwant\n%s", body, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}
