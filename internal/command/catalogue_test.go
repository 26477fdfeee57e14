package command

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
	"telapi/test/testkit"
)

// fill sets a field to a value other than its zero value.
func fill(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[jsontext.Value]():
		v.Set(reflect.ValueOf(jsontext.Value(`{"a":1}`)))
	case v.Type() == reflect.TypeFor[wire.NameValues]():
		v.Set(reflect.ValueOf(wire.NameValues{List: []wire.NameValue{{Name: "a", Value: "b"}}, AsObject: true}))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case v.Kind() == reflect.Struct:
		fill(v.Field(0))
	case v.Kind() == reflect.String:
		v.SetString("s")
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.Int64:
		v.SetInt(7)
	case v.Kind() == reflect.Float64:
		v.SetFloat(1.5)
	}
}

func TestCatalogueMatchesDocumentation(t *testing.T) {
	documented := map[string]struct {
		fields string
		apply  wire.ApplyMode
	}{
		"hangup":                  {"reason waitForSilence delayBotDisconnectMs", wire.ApplyAfterPlayback},
		"transfer":                {"target message canConfirm", wire.ApplyAfterPlayback},
		"set_barge_in":            {"enabled", wire.ApplyInOrder},
		"set_voice_input":         {"enabled clearBuffer", wire.ApplyInOrder},
		"update_stt_config":       {"config", wire.ApplyImmediately},
		"update_tts_config":       {"config", wire.ApplyImmediately},
		"set_tts_voice":           {"voice", wire.ApplyInOrder},
		"set_tts_speaking_rate":   {"rate", wire.ApplyInOrder},
		"play_audio":              {"media", wire.ApplyInOrder},
		"send_dtmf":               {"digits", wire.ApplyInOrder},
		"update_dtmf_config":      {"enabled sendDTMF bargeIn bargeInOnDTMF bargeInMinWordCount maxDigits timeoutMs interDigitTimeoutMs terminator dtmfDigits", wire.ApplyImmediately},
		"update_bot_delay_config": {"botNoInputTimeoutMs botNoInputSpeech botNoInputUrl botNoInputRetries botNoInputGiveUpTimeoutMs abortPlayOnBotMessage resumeRecognitionTimeoutMs resumeRecognitionSpeech", wire.ApplyImmediately},
		"set_context":             {"values", wire.ApplyInOrder},
		"emit_event":              {"event payload", wire.ApplyInOrder},
	}
	testkit.Equal(t, "commands in the catalogue", len(Catalogue), len(documented))
	for _, spec := range Catalogue {
		t.Run(spec.Type, func(t *testing.T) {
			want, ok := documented[spec.Type]
			if !ok || spec.Apply != want.apply {
				t.Errorf("documented: %v, applies %q; want %q", ok, spec.Apply, want.apply)
			}
			for name := range strings.FieldsSeq(want.fields) {
				if !slices.ContainsFunc(spec.Fields, func(f Field) bool { return f.Name == name }) {
					t.Errorf("field %s is missing", name)
				}
			}
		})
	}
}

func TestFieldsSurviveEncoding(t *testing.T) {
	for _, spec := range Catalogue {
		for _, f := range spec.Fields {
			t.Run(spec.Type+"."+f.Name, func(t *testing.T) {
				c := wire.NewCommand(spec.Type)
				fill(f.create(c))
				encoded, err := json.Marshal(wire.Entry{Command: wire.AnyCommand{Command: c}})
				testkit.Must(t, err)
				last := f.Name[strings.LastIndex(f.Name, ".")+1:]
				if !strings.Contains(string(encoded), `"`+last+`":`) {
					t.Errorf("no member %s in %s", last, encoded)
				}
				var decoded wire.Entry
				if err := json.Unmarshal(encoded, &decoded); err != nil || !reflect.DeepEqual(decoded.Command.Command, c) {
					t.Errorf("decoded %+v, %v; want %+v", decoded.Command.Command, err, c)
				}
			})
		}
	}
}

func TestCheckProfileReportsEveryIssue(t *testing.T) {
	var p wire.GatewayProfile
	const profile = `{"commandSources":["bot","mars"],"commandPolicies":[{"type":"fly"},{},{"type":"transfer","allowedTargets":["tel:+49*","http:*"],"allowedHeaders":["X-A","a b"]},{"type":"transfer"}],"actions":{"transfer":{"target":"nowhere"}},"speech":{"stt":["a",""],"tts":[" "]}}`
	testkit.Must(t, json.Unmarshal([]byte(profile), &p))
	var issues fault.Issues
	CheckProfile(p, "/p", &issues)
	want := []string{"/p/commandSources/1", "/p/commandPolicies/0/type", "/p/commandPolicies/1/type", "/p/commandPolicies/2/allowedTargets/1", "/p/commandPolicies/2/allowedHeaders/1", "/p/commandPolicies/3/type", "/p/actions/transfer/target", "/p/speech/stt/1", "/p/speech/tts/0"}
	testkit.Equal(t, "issues at", testkit.IssuePaths(issues.Err()), want)
}

func TestBoundsOfProfile(t *testing.T) {
	list := func(n int, item string) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	policy := func(members string) string { return `{"commandPolicies":[{"type":"transfer",` + members + `}]}` }
	longest := func(n int) string { return `"tel:` + strings.Repeat("1", n-4) + `"` }
	for profile, want := range map[string]string{
		`{"x":"` + strings.Repeat("a", MaxProfileBytes-8) + `"}`:        "",
		`{"x":"` + strings.Repeat("a", MaxProfileBytes-7) + `"}`:        "/p too_long: A gateway profile must have at most 65536 bytes of JSON.",
		policy(`"allowedTargets":` + list(200, `"*"`)):                  "",
		policy(`"allowedTargets":` + list(201, `"*"`)):                  "/p/commandPolicies/0/allowedTargets too_many: At most 200 items are allowed.",
		policy(`"allowedTargets":[` + longest(128) + `]`):               "",
		policy(`"allowedTargets":[` + longest(129) + `]`):               "/p/commandPolicies/0/allowedTargets/0 too_long: Must have at most 128 characters.",
		policy(`"allowedHeaders":` + list(101, `"X-A"`)):                "/p/commandPolicies/0/allowedHeaders too_many: At most 100 items are allowed.",
		policy(`"allowedHeaders":["` + strings.Repeat("x", 129) + `"]`): "/p/commandPolicies/0/allowedHeaders/0 too_long: Must have at most 128 characters.",
		policy(`"allowedTargets":` + list(201, `"http:*"`)):             "/p/commandPolicies/0/allowedTargets too_many: At most 200 items are allowed.",
		policy(`"allowedHeaders":` + list(101, `"a b"`)):                "/p/commandPolicies/0/allowedHeaders too_many: At most 100 items are allowed.",
		policy(`"allowedHeaders":["` + strings.Repeat("x", 128) + `"]`): "",
		`{"commandPolicies":[{"enabled":true}]}`:                        "/p/commandPolicies/0/type required: type is required.",
		`{"actions":{"hangup":{"reason":"r"}}}`:                         "",
		`{"commandSources":` + list(3, `"bot"`) + `}`:                   "",
		`{"commandSources":["bot","bot","mars"]}`:                       "/p/commandSources/2 invalid_value: Unknown source \"mars\": use " + strings.Join(wire.Sources, ", ") + ".",
		`{"commandSources":` + list(4, `"mars"`) + `}`:                  "/p/commandSources too_many: At most 3 items are allowed.",
		`{"speech":{"stt":` + list(50, `"a"`) + `}}`:                    "",
		`{"speech":{"stt":` + list(51, `""`) + `}}`:                     "/p/speech/stt too_many: At most 50 items are allowed.",
		`{"speech":{"tts":["` + strings.Repeat("ä", 128) + `"]}}`:       "",
		`{"commandSources":` + list(4, `"bot"`) + `}`:                   "/p/commandSources too_many: At most 3 items are allowed.",
		`{"commandPolicies":` + list(15, `{"type":"x"}`) + `}`:          "/p/commandPolicies too_many: At most 14 items are allowed.",
		`{"actions":{"transfer":{"target":` + longest(256) + `}}}`:      "",
		`{"actions":{"transfer":{"target":` + longest(257) + `}}}`:      "/p/actions/transfer/target too_long: target must have at most 256 characters.",
		`{"actions":{"hangup":{"delayBotDisconnectMs":-1}}}`:            "/p/actions/hangup/delayBotDisconnectMs too_small: delayBotDisconnectMs must be at least 0.",
		`{"speech":{"stt":` + list(51, `"a"`) + `}}`:                    "/p/speech/stt too_many: At most 50 items are allowed.",
		`{"speech":{"tts":["` + strings.Repeat("ä", 129) + `"]}}`:       "/p/speech/tts/0 too_long: Must have at most 128 characters.",
	} {
		var p wire.GatewayProfile
		testkit.Must(t, json.Unmarshal([]byte(profile), &p))
		var issues fault.Issues
		CheckProfile(p, "/p", &issues)
		var got []string
		for _, i := range issues.List() {
			got = append(got, i.Path+" "+i.Code+": "+i.Message)
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("%.60s…: issues %q, want %q", profile, got, want)
		}
	}
}

func TestValueOfWrongTypeHasOneIssue(t *testing.T) {
	var issues fault.Issues
	var p wire.GatewayProfile
	testkit.Must(t, strictjson.Decode([]byte(`{"commandSources":["bot",5]}`), &p, "/p", &issues))
	CheckProfile(p, "/p", &issues)
	ParseActions(jsontext.Value(`[{"type":"set_tts_speaking_rate","rate":"fast"},{"type":"transfer","sipQueryParams":[{"name":"a b","value":"x"}]}]`), "/c", &issues)
	testkit.Equal(t, "issues at", testkit.IssuePaths(issues.Err()), []string{"/p/commandSources/1", "/c/0/rate", "/c/1/sipQueryParams/0/name"})
}

func TestTooManyPatternsAllowNothing(t *testing.T) {
	p := transferPolicy(t, `,"allowedTargets":["*"`+strings.Repeat(`,"*"`, maxPatterns)+`]`)
	testkit.Equal(t, "reason", p.Decide(Request{Command: transfer("+491")}, "bot", "").Reason, TargetNotAllowed)
}

func TestEscapedLineBreaksAreFound(t *testing.T) {
	for s, want := range map[string]bool{
		"%0d": true, "%0A": true, "%00": true, "%250d": true, "%25252525250A": true, "a%zz%0d": true,
		"%%30a": true, "%25%30%61": true, "%2%35%30%64": true, "%2530%2561%0%30": true,
		"": false, "%": false, "%0": false, "%0b": false, "100%": false, "%25": false, "%2525": false, "%41": false, "%%30b": false,
	} {
		testkit.Equal(t, fmt.Sprintf("%q: found", s), hasEscapedBreak(s), want)
	}
}

func TestLineBreaksInSIPFieldsAreRejected(t *testing.T) {
	for _, commandType := range []string{"hangup", "transfer", "send_dtmf"} {
		for _, f := range specs[commandType].Fields {
			if f.Type != "string" || f.Name == "message" { // not part of a SIP message
				continue
			}
			for _, end := range []string{"\r", "\n", "\x00"} {
				raw, err := json.Marshal(map[string]string{"type": commandType, f.Name: "1" + end})
				testkit.Must(t, err)
				var issues fault.Issues
				ParseActions(raw, "", &issues)
				testkit.Equal(t, string(raw)+": issues at", testkit.IssuePaths(issues.Err()), []string{"/" + f.Name})
			}
		}
	}
}
