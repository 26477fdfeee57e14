package callback

import (
	"fmt"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// event returns a body with a control event.
func event(name, value string) []byte {
	return fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"c"}},"messages":{"message":[{"content":{"event":{"custom":{"name":%q,"value":%s}}}}]}}`, name, value)
}

// issue returns the code of the only issue of a body, or "".
func issue(t *testing.T, body []byte) string {
	t.Helper()
	_, err := Parse(wire.BotItem, body, "c")
	if err == nil {
		return ""
	}
	issues, ok := fault.From(err).Details.([]fault.Issue)
	if !ok || len(issues) != 1 {
		t.Fatalf("error %v, want one issue", err)
	}
	return issues[0].Code
}

func TestDocumentedBounds(t *testing.T) {
	const unbounded = 1_000_000_000
	for _, tt := range []struct {
		field    string
		min, max int
	}{
		{"bargeInMinWordCount", 0, unbounded},
		{"dtmfCollectInterDigitTimeoutMS", 0, unbounded},
		{"dtmfCollectMaxDigits", 0, unbounded},
		{"sttConnectionTimeoutMS", 10, 600000},
		{"sttRetries", 0, 10},
		{"ttsConnectionTimeoutMS", 10, 600000},
		{"ttsRetries", 0, 10},
		{"botNoInputGiveUpTimeoutMS", 1000, 120000},
		{"botNoInputGiveUpTimeoutMs", 1000, 120000},
		{"botNoInputTimeoutMs", 500, 60000},
		{"botNoInputRetries", 0, 10},
		{"resumeRecognitionTimeoutMs", 1000, 60000},
		{"transferNotificationsHangupMS", 0, 10000},
	} {
		for n, want := range map[int]string{tt.min - 1: fault.IssueTooSmall, tt.min: "", tt.max: "", tt.max + 1: fault.IssueTooLarge} {
			body := event("config", fmt.Sprintf(`{"sessionParams":{%q:%d}}`, tt.field, n))
			if tt.field == "transferNotificationsHangupMS" {
				body = event("transfer", fmt.Sprintf(`{%q:%d}`, tt.field, n))
			}
			if got := issue(t, body); got != want && n <= unbounded {
				t.Errorf("%s %d: issue %q, want %q", tt.field, n, got, want)
			}
		}
	}
}

func TestLengthsAreInCodePoints(t *testing.T) {
	for _, field := range []string{"botNoInputSpeech", "resumeRecognitionSpeech"} {
		for n, want := range map[int]string{0: "", 499: "", 500: "", 501: fault.IssueTooLong} {
			testkit.Equal(t, fmt.Sprintf("%s of %d code points: issue", field, n), issue(t, event("config", fmt.Sprintf(`{"sessionParams":{%q:%q}}`, field, strings.Repeat("😀", n)))), want)
		}
	}
}

func TestUnboundedParametersAreTypeChecked(t *testing.T) {
	for _, field := range []string{"sendDTMF", "bargeInOnDTMF", "bargeIn", "dtmfCollect", "abortPlayOnBotMessage"} {
		for value, want := range map[string]string{"true": "", "false": "", "1": fault.IssueType, `"true"`: fault.IssueType, "null": fault.IssueType} {
			testkit.Equal(t, fmt.Sprintf("%s = %s: issue", field, value), issue(t, event("config", fmt.Sprintf(`{"sessionParams":{%q:%s}}`, field, value))), want)
		}
	}
	for _, field := range []string{"sttProvider", "ttsProvider", "botNoInputUrl"} {
		for value, want := range map[string]string{`""`: "", `"` + strings.Repeat("x", 5000) + `"`: "", "1": fault.IssueType, "true": fault.IssueType} {
			testkit.Equal(t, fmt.Sprintf("%s = %.10s: issue", field, value), issue(t, event("config", fmt.Sprintf(`{"sessionParams":{%q:%s}}`, field, value))), want)
		}
	}
}

func TestSIPHeaderLimits(t *testing.T) {
	list := func(items, length int) string {
		var all []string
		for i := range items {
			name := fmt.Sprintf("X%03d", i)
			all = append(all, fmt.Sprintf(`{"name":%q,"value":%q}`, name, strings.Repeat("ä", length-len(name))))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for value, want := range map[string]string{
		`{"transferSipHeaders":` + list(100, 5) + `}`:     "",
		`{"transferSipHeaders":` + list(101, 5) + `}`:     fault.IssueTooMany,
		`{"transferSipHeaders":` + list(1, 11999) + `}`:   "",
		`{"transferSipHeaders":` + list(1, 12000) + `}`:   fault.IssueTooLong,
		`{"transferSipHeaders":` + list(10, 1200) + `}`:   fault.IssueTooLong,
		`{"hangupSipHeaders":` + list(100, 5) + `}`:       "",
		`{"hangupSipHeaders":` + list(101, 5) + `}`:       fault.IssueTooMany,
		`{"hangupSipHeaders":` + list(100, 2000) + `}`:    "", // no total length
		`{"transferSipQueryParams":` + list(200, 5) + `}`: "", // no number of items
		`{"sipQueryParams":` + list(1, 12000) + `}`:       fault.IssueTooLong,
		`{"transferSipQueryParams":{"X-A":""}}`:           "",
		`{"transferSipQueryParams":{"X-A":null}}`:         fault.IssueRequired,
		`{"sipQueryParams":{"X-A":null}}`:                 fault.IssueRequired,

		// The total of one transfer.
		`{"transferSipHeaders":` + list(1, 6000) + `,"transferSipQueryParams":` + list(1, 5999) + `,"hangupSipHeaders":` + list(1, 6000) + `}`: "",
		`{"transferSipHeaders":` + list(1, 6000) + `,"transferSipQueryParams":` + list(1, 6000) + `}`:                                          fault.IssueTooLong,
		`{"transferSipQueryParams":` + list(1, 6000) + `,"sipQueryParams":{"X-A":"` + strings.Repeat("a", 5996) + `"}}`:                        "",
		`{"transferSipQueryParams":` + list(1, 6000) + `,"sipQueryParams":{"X-A":"` + strings.Repeat("a", 5997) + `"}}`:                        fault.IssueTooLong,
		`{"target":"sip:a@b?X-A=` + strings.Repeat("a", 197) + `","sipQueryParams":` + list(1, 11799) + `}`:                                    "",
		`{"target":"sip:a@b?X-A=` + strings.Repeat("a", 197) + `","sipQueryParams":` + list(1, 11800) + `}`:                                    fault.IssueTooLong,
		`{"target":"sip:a@b?X-A=` + strings.Repeat("a", 197) + `","transferTarget":"tel:1","sipQueryParams":` + list(1, 11800) + `}`:           "",
	} {
		for _, name := range []string{"transfer", "hangup"} {
			testkit.Equal(t, fmt.Sprintf("%s %.40s…: issue", name, value), issue(t, event(name, value)), want)
			action := fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"c"}},"actions":{"type":%q,%s}`, name, value[1:])
			if got := issue(t, action); got != want && (name == "transfer" || !strings.Contains(value, "arget\"")) { // a hangup has no target
				t.Errorf("action %s %.40s…: issue %q, want %q", name, value, got, want)
			}
		}
	}
}

func TestEnumValues(t *testing.T) {
	for field, values := range map[string]string{
		"transferMethod":           "sip_refer sip_refer_replace sip_invite sip_invite_bridge sip_invite_reinvite_p2p sip_bye",
		"transferReferOutcomeMode": "blind notify",
		"botOperationResult":       "success failure",
	} {
		for value := range strings.FieldsSeq(values) {
			testkit.Equal(t, fmt.Sprintf("%s %s: issue", field, value), issue(t, event("transfer", fmt.Sprintf(`{%q:%q}`, field, value))), "")
		}
		testkit.Equal(t, fmt.Sprintf("%s with an unknown value: issue", field), issue(t, event("transfer", fmt.Sprintf(`{%q:"SIP_REFER"}`, field))), fault.IssueValue)
	}
}

func TestTimestampForms(t *testing.T) {
	valid := []string{
		"2026-11-15T09:30:00Z", "2026-11-15T09:30:00.123456789Z", "2026-11-15T09:30:00+05:45", "2024-02-29T23:59:59-12:00", "2026-11-15t09:30:00z", "2026-11-15 09:30:00Z",
		"2026-11-15T09:30:00-00:00", "2026-11-15T09:30:00+0100", "2026-11-15T09:30:00+01", "2026-11-15T09:30:00,5Z", "2026-11-15T09:30Z", "2026-11-15T09:30+01:00",
		"20261115T093000Z", "20261115T0930Z", "20261115T093000.5+0100", "20261115t093000-0330", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z",
		"2026-11-15T23:59:60Z", "2016-12-31T23:59:60.5Z", "2017-01-01T00:59:60+01:00", "2016-12-31T15:59:60-08:00", "20161231T235960Z", // leap seconds
		"2026-11-15T09:30:00." + strings.Repeat("1", 43) + "Z", // 64 characters
	}
	invalid := []string{
		"2026-11-15T23:58:60Z", "2026-11-15T23:59:60+01:00", "2026-11-15T23:59:61Z", "2026-11-15T23:60:00Z", "2026-11-15T24:00:00Z", "2026-11-15T24:00:01Z", "2026-11-15T09:30:00+24:00",
		"2026-11-15T09:30:00", "2026-11-15T09:30", "20261115T093000", "20261115T09:30:00Z", "2026-11-15T093000Z", "2026-11-15T9:30:00Z", "2026-11-15T09:30:00.Z", "2026-11-15T09:30.5Z",
		"2026-11-15T09:30:00 Z", "2026-11-15T09:30:00+1", "2026-11-15T09:30:00+01:0", "2026-11-15T09:30:00+01:60", "2026-13-15T09:30:00Z", "2026-11-31T09:30:00Z", "2025-02-29T00:00:00Z",
		"2026-11-15Z", "2026-11-15", "", "2026-11-15T09:30:00Z\n", "2026-11-15T09:30:00ZZ", "२०२६-11-15T09:30:00Z", "Sun, 15 Nov 2026 09:30:00 +0000",
		"2026-11-15T09:30:00." + strings.Repeat("1", 44) + "Z",
	}
	for i, timestamp := range append(valid, invalid...) {
		body := fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"c"}},"messages":{"timestamp":%q}}`, timestamp)
		if _, err := Parse(wire.BotItem, body, "c"); (err == nil) != (i < len(valid)) {
			t.Errorf("%q: error %v; want valid: %v", timestamp, err, i < len(valid))
		}
	}
}

func TestBodyWithTimestampOrMessageIDHasIdentity(t *testing.T) {
	for messages, want := range map[string]bool{
		`{"message":[{"content":{}}]}`:                              false,
		`{"message":[{"content":{}},{"messageId":1,"content":{}}]}`: true,
		`{"message":[{"messageId":null,"content":{}}]}`:             false,
		`{"timestamp":"2026-11-15T09:30:00Z"}`:                      true,
	} {
		result, err := Parse(wire.BotItem, []byte(`{"conversation":{"identifier":{"id":"c"}},"messages":`+messages+`}`), "c")
		if err != nil || result.hasIdentity != want {
			t.Errorf("%s: hasIdentity %v, %v; want %v", messages, result.hasIdentity, err, want)
		}
	}
}

func TestHostileBodiesAreRejected(t *testing.T) {
	wrap := func(metadata string) string {
		return `{"conversation":{"identifier":{"id":"c"}},"metadata":` + metadata + `}`
	}
	for name, tt := range map[string]struct {
		body string
		code fault.Code
	}{
		"empty":                {"", fault.MalformedJSON},
		"invalid UTF-8":        {wrap("{\"a\":\"\xc3\x28\"}"), fault.MalformedJSON},
		"byte order mark":      {"\ufeff" + wrap("{}"), fault.MalformedJSON},
		"10,000 levels":        {wrap(strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10000)), fault.MalformedJSON},
		"200 levels":           {wrap(strings.Repeat(`[`, 200) + strings.Repeat("]", 200)), fault.MalformedJSON},
		"NaN":                  {wrap(`{"a":NaN}`), fault.MalformedJSON},
		"null":                 {"null", fault.Validation},
		"number":               {"7", fault.Validation},
		"id of another case":   {`{"conversation":{"identifier":{"ID":"c"}}}`, fault.Validation},
		"huge pause":           {`{"conversation":{"identifier":{"id":"c"}},"messages":{"message":[{"content":{"event":{"pause":1e400}}}]}}`, fault.Validation},
		"huge session integer": {string(event("config", `{"sessionParams":{"bargeInMinWordCount":1e40}}`)), fault.Validation},
	} {
		testkit.WantFault(t, name, testkit.ErrorOf(Parse(wire.BotItem, []byte(tt.body), "c")), tt.code)
	}
	if _, err := Parse(wire.BotItem, []byte(wrap(`{"n":1e400,"d":12345678901234567890123}`)), "c"); err != nil {
		t.Errorf("large numbers in metadata: %v, want no error", err)
	}
}

// commandsWithManyIssues returns commands with more issues than are recorded, and with a type
// error after them, where the decoder skips values.
func commandsWithManyIssues() []string {
	var params []string
	for i := range 100 {
		params = append(params, fmt.Sprintf(`"x%d":1`, i))
	}
	header := `{"name":1,"value":1}`
	return []string{
		`[{"type":"hangup","sessionParams":{` + strings.Join(params, ",") + `}},{"type":"hangup","delayBotDisconnectMs":"x"}]`,
		`[{"transferSipHeaders":[` + strings.Repeat(header+",", 100) + header + `],"type":"transfer"}]`,
	}
}

func TestCommandsWithManyIssuesAreRejected(t *testing.T) {
	for i, commands := range commandsWithManyIssues() {
		for kind, body := range map[wire.WorkItemKind]string{
			wire.BotItem: `{"conversation":{"identifier":{"id":"c"}},"actions":` + commands + `}`,
			wire.LLMItem: `{"commands":` + commands + `}`,
		} {
			_, err := Parse(kind, []byte(body), "c")
			testkit.Equal(t, fmt.Sprintf("%s body %d: issues", kind, i), len(testkit.IssuePaths(err)), 100)
		}
	}
}

func TestMessagesWithEqualSequenceKeepTheirOrder(t *testing.T) {
	var list []string
	for i := range 60 {
		list = append(list, fmt.Sprintf(`{"messageId":%d,"sequence":%d,"content":{"textMessage":{"textPlain":"x"}}}`, i, i%2))
	}
	result, err := Parse(wire.BotItem, []byte(`{"conversation":{"identifier":{"id":"c"}},"messages":{"message":[`+strings.Join(list, ",")+`]}}`), "c")
	testkit.Must(t, err)
	entries, _ := result.Entries(entryOf("bot"), policy(t, "open"))
	for i, e := range entries {
		if want := fmt.Sprint(i*2%60 + i/30); string(e.MessageID) != want {
			t.Fatalf("entry %d has message %s, want %s", i, e.MessageID, want)
		}
	}
}

func TestAmplificationIsLimited(t *testing.T) {
	body := func(avatar string, messages int, actions string) []byte {
		list := strings.TrimSuffix(strings.Repeat(`{"content":{"voiceMessage":"a"}},`, messages), ",")
		return fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"c"}},"from":{"avatar":%q,"identifier":{"id":"12345","name":"12345"}},"messages":{"message":[%s]},"actions":[%s]}`, avatar, list, actions)
	}
	zeros := func(n int) string { return strings.TrimSuffix(strings.Repeat("0,", n), ",") }
	for name, tt := range map[string]struct {
		body []byte
		want string
	}{
		"500 messages":                   {body("", 500, ""), ""},
		"501 messages":                   {body("", 501, ""), fault.IssueTooMany},
		"100 actions":                    {body("", 1, zeros(100)), ""},
		"101 actions":                    {body("", 1, zeros(101)), fault.IssueTooMany},
		"an avatar of 20 KB, 200 times":  {body(strings.Repeat("a", 20_000), 200, ""), ""},
		"an avatar of 500 KB, 100 times": {body(strings.Repeat("a", 500_000), 100, ""), fault.IssueTooLong},
		"4 MiB of copies":                {body(strings.Repeat("a", 1<<18-10), 16, ""), ""},
		"one byte more":                  {body(strings.Repeat("a", 1<<18-9), 16, ""), fault.IssueTooLong},
		"an avatar of 500 KB, once":      {body(strings.Repeat("a", 500_000), 1, ""), ""},
	} {
		testkit.Equal(t, fmt.Sprintf("%s: issue", name), issue(t, tt.body), tt.want)
	}
	_, err := Parse(wire.BotItem, body(strings.Repeat("a", 1<<19), 16, ""), "c")
	testkit.Contains(t, "error", fmt.Sprint(err), "with 16 messages, they can have at most 262144 bytes")
}

// Lists that are too long to be decoded get the bound of their field.
func TestBoundOfLongListIsReported(t *testing.T) {
	list := func(item string) string { return "[" + strings.Repeat(item+",", 40_000) + item + "]" }
	const id = `{"conversation":{"identifier":{"id":"c"}},`
	for body, tt := range map[string]struct {
		kind wire.WorkItemKind
		want string
	}{
		id + `"messages":{"message":` + list("0") + `}}`:                            {wire.BotItem, "/messages/message: At most 500 items are allowed. Send fewer."},
		id + `"actions":` + list("0") + `}`:                                         {wire.BotItem, "/actions: At most 100 commands are allowed. Send fewer."},
		id + `"actions":{"type":"hangup","hangupSipHeaders":` + list("{}") + `}}`:   {wire.BotItem, "/actions/hangupSipHeaders: At most 100 items are allowed. Send fewer."},
		id + `"actions":{"type":"hangup","transferSipHeaders":` + list("{}") + `}}`: {wire.BotItem, "/actions/transferSipHeaders: At most 100 items are allowed. Send fewer."},
		id + `"actions":{"type":"hangup","sipQueryParams":` + list("{}") + `}}`:     {wire.BotItem, "/actions/sipQueryParams: At most 32768 items are allowed. Send fewer."},
		string(event("hangup", `{"hangupSipHeaders":`+list("{}")+`}`)):              {wire.BotItem, "/messages/message/0/content/event/custom/value/hangupSipHeaders: At most 100 items are allowed. Send fewer."},
		id + `"channelData":` + list("{}") + `}`:                                    {wire.BotItem, "/channelData: At most 32768 items are allowed. Send fewer."},
		id + `"nluData":` + list("{}") + `,"metadata":{"a":` + list("0") + `}}`:     {wire.BotItem, ""},
		`{"content":` + list("{}") + `}`:                                            {wire.LLMItem, "/content: At most 32768 items are allowed. Send fewer."},
		`{"choices":` + list("{}") + `}`:                                            {wire.LLMItem, "/choices: At most 32768 items are allowed. Send fewer."},
		`{"commands":` + list("0") + `}`:                                            {wire.LLMItem, "/commands: At most 100 items are allowed. Send fewer."},
		`{"commands":[` + strings.Repeat("0,", 100) + `0]}`:                         {wire.LLMItem, "/commands: At most 100 commands are allowed. Send fewer."},
		list("{}"): {wire.ToolItem, ""},
	} {
		want := ""
		if tt.want != "" {
			want = "VALIDATION_ERROR: " + tt.want
		}
		if _, err := Parse(tt.kind, []byte(body), "c"); strings.TrimPrefix(fmt.Sprint(err), "<nil>") != want {
			t.Errorf("%.80s…: error %v, want %s", body, err, want)
		}
	}
}

func TestEntriesCanBeCreatedAgainWithAnotherPolicy(t *testing.T) {
	result, err := Parse(wire.BotItem, event("transfer", `{"hangupReason":"r"}`), "c")
	testkit.Must(t, err)
	withDefaults, _ := result.Entries(entryOf("bot"), policy(t, "defaults"))
	withoutDefaults, _ := result.Entries(entryOf("bot"), policy(t, "open"))
	if withDefaults[0].Reason != "" || withoutDefaults[0].Reason != "target_missing" {
		t.Errorf("reasons %q and %q, want none and target_missing", withDefaults[0].Reason, withoutDefaults[0].Reason)
	}
}
