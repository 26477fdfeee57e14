package contract

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/oasdiff/yaml"

	"telapi/api"
	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/test/testkit"
)

// runtimeExample is an example of a message of /ws/runtime.
type runtimeExample struct {
	message string
	frame   []byte
	check   func([]byte) error
}

func runtimeExamples(t *testing.T) (examples []runtimeExample) {
	t.Helper()
	f := loadFrames(t)
	requests := map[string]bool{}
	for _, op := range f.file.Operations {
		if op.Channel.name() == "runtime" && op.Action == Receive {
			requests[op.Messages[0].name()] = true
		}
	}
	for name, m := range f.file.Channels["runtime"].Messages {
		check := CheckRuntimeFrame
		if requests[name] {
			check = CheckRuntimeRequest
		}
		if len(m.Examples) == 0 {
			t.Errorf("message %s has no example", name)
		}
		for _, e := range m.Examples {
			examples = append(examples, runtimeExample{name, e.Payload, check})
		}
	}
	return examples
}

func TestRuntimeExamplesAreValid(t *testing.T) {
	for _, e := range runtimeExamples(t) {
		if err := e.check(e.frame); err != nil {
			t.Errorf("example of %s: %v", e.message, err)
		}
	}
}

// HTTP clients remove the IDs . and .. from paths, so the service rejects them.
func TestIDsThatTheServiceRejectsAreInvalid(t *testing.T) {
	for _, request := range []string{
		`{"id":1,"op":"accept","endpoints":["ID"]}`, `{"id":1,"op":"release","channel":"ID"}`,
		`{"id":1,"op":"cancel","channel":"c","workItemId":"ID"}`, `{"id":1,"op":"await","channel":"c","workItemId":"ID"}`,
	} {
		for id, valid := range map[string]bool{".": false, "..": false, "...": true} {
			frame := strings.Replace(request, "ID", id, 1)
			if err := CheckRuntimeRequest([]byte(frame)); (err == nil) != valid {
				t.Errorf("%s: %v, want valid %v", frame, err, valid)
			}
		}
	}
}

// Every operation, event and kind of package wire has a message with an example, and no
// others have one.
func TestRuntimeMessagesMatchWire(t *testing.T) {
	f := loadFrames(t)
	var kinds []string
	for _, e := range runtimeExamples(t) {
		var push struct{ Entry struct{ Kind string } }
		if e.message == "entry" && json.Unmarshal(e.frame, &push) == nil {
			kinds = append(kinds, push.Entry.Kind)
		}
	}
	for _, tt := range []struct {
		goType     string
		documented []string
	}{
		{"Op", slices.Collect(maps.Keys(f.runtime.requests))},
		{"PushEvent", slices.Collect(maps.Keys(f.runtime.pushes))},
		{"EntryKind", kinds},
	} {
		want := wireConstants(t, tt.goType)
		slices.Sort(tt.documented)
		if len(want) == 0 || !slices.Equal(tt.documented, want) {
			t.Errorf("api/asyncapi.yaml has messages for %v, wire.%s has the values %v", tt.documented, tt.goType, want)
		}
	}
	testkit.Equal(t, "documented path", f.file.Channels["runtime"].Address, wire.RuntimePath)
	limits := slices.Sorted(maps.Keys(f.file.Channels["runtime"].Limits))
	if want := slices.Sorted(maps.Keys(wireMembers(reflect.TypeFor[wire.RuntimeLimits]()))); !slices.Equal(limits, want) {
		t.Errorf("x-limits has %v, wire.RuntimeLimits %v", limits, want)
	}
}

// wireConstants returns the values of the constants of a type of package wire, sorted.
func wireConstants(t *testing.T, goType string) (values []string) {
	t.Helper()
	for _, name := range []string{"runtime.go", "entry.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), "../../callruntime/wire/"+name, nil, 0)
		testkit.Must(t, err)
		for node := range ast.Preorder(file) {
			spec, ok := node.(*ast.ValueSpec)
			if !ok {
				continue
			}
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == goType {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				testkit.Must(t, err)
				values = append(values, value)
			}
		}
	}
	slices.Sort(values)
	return values
}

// wireMembers returns the JSON members of a struct; the value is true if a member is always
// present. Members of embedded structs are included. An outer member hides an inner one.
func wireMembers(goType reflect.Type) map[string]bool {
	members := map[string]bool{}
	for i := range goType.NumField() {
		field := goType.Field(i)
		tag := field.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case field.Anonymous:
			for inner, required := range wireMembers(field.Type) {
				if _, hidden := members[inner]; !hidden {
					members[inner] = required
				}
			}
		case name != "":
			members[name] = !strings.HasPrefix(options, "omit")
		}
	}
	return members
}

func TestRuntimeSchemasMatchWire(t *testing.T) {
	asJSON, err := yaml.YAMLToJSON(api.AsyncAPI)
	testkit.Must(t, err)
	var file struct {
		Components struct{ Schemas map[string]runtimeSchema }
	}
	testkit.Must(t, json.Unmarshal(asJSON, &file))
	schemas := file.Components.Schemas
	for _, tt := range []struct {
		goType  reflect.Type
		schemas string // separated by spaces; each has some of the members, all together have all
		without string // members of the struct that the schema does not have, separated by spaces
	}{
		{reflect.TypeFor[wire.Hello](), "HelloRequest", "channel claim retry"},
		{reflect.TypeFor[wire.Resume](), "Resume", ""},
		{reflect.TypeFor[wire.Accept](), "AcceptRequest", "channel claim retry"},
		{reflect.TypeFor[wire.Open](), "OpenRequest", "claim"},
		{reflect.TypeFor[wire.Commit](), "CommitRequest", ""},
		{reflect.TypeFor[wire.Send](), "SendRequest", ""},
		{reflect.TypeFor[wire.SendAudio](), "AudioRequest", "id retry"},
		{reflect.TypeFor[wire.Await](), "AwaitRequest", ""},
		{reflect.TypeFor[wire.Cancel](), "CancelRequest", ""},
		{reflect.TypeFor[wire.End](), "EndRequest", ""},
		{reflect.TypeFor[wire.Request](), "ReleaseRequest", ""},
		{reflect.TypeFor[wire.Report](), "ReportRequest", "channel claim retry"},
		{reflect.TypeFor[wire.SpeechReport](), "SpeechReport", ""},
		{reflect.TypeFor[wire.Reply](), "DoneReply ErrorReply", ""},
		{reflect.TypeFor[wire.Welcome](), "Welcome", ""},
		{reflect.TypeFor[wire.Resumed](), "Resumed", ""},
		{reflect.TypeFor[wire.RuntimeLimits](), "RuntimeLimits", ""},
		{reflect.TypeFor[wire.Claimed](), "Claimed", ""},
		{reflect.TypeFor[wire.OpenWorkItem](), "OpenWorkItem", ""},
		{reflect.TypeFor[wire.Offer](), "Offer", ""},
		{reflect.TypeFor[wire.ICEServer](), "IceServer", ""},
		{reflect.TypeFor[wire.Identifier](), "Identifier", ""},
		{reflect.TypeFor[wire.Sent](), "Sent", ""},
		{reflect.TypeFor[wire.Awaited](), "Awaited", ""},
		{reflect.TypeFor[wire.RuntimeError](), "RuntimeError", ""},
		{reflect.TypeFor[wire.Push](), "EntryPush AudioPush ClaimLostPush LostPush DrainPush ErrorPush", ""},
		{reflect.TypeFor[wire.Trace](), "Trace", ""},
		{reflect.TypeFor[wire.ChannelMessage](), "RuntimeMessage RuntimeAudio", "streamId"},
		{reflect.TypeFor[wire.ChannelMessage](), "BrowserMessage BrowserAudio", "streamId"},
		{reflect.TypeFor[wire.Entry](), schemas["Entry"].alternatives(), ""},
		{reflect.TypeFor[wire.Party](), "Party", ""},
		{reflect.TypeFor[wire.ChannelDatum](), "ChannelDatum", ""},
		{reflect.TypeFor[wire.NameValue](), "NameValue", ""},
	} {
		compareMembers(t, tt.goType, schemas, tt.schemas, tt.without)
	}
	documented := strings.Fields(schemas["RuntimeCommand"].alternatives())
	testkit.Equal(t, "documented commands", len(documented), len(command.Catalogue))
	for _, name := range documented {
		commandType, _ := schemas[name].Properties["type"]["const"].(string)
		c := wire.NewCommand(commandType)
		if c == nil {
			t.Errorf("%s: unknown command type %q", name, commandType)
			continue
		}
		compareMembers(t, reflect.TypeOf(c).Elem(), schemas, name, "")
	}
}

type runtimeSchema struct {
	Properties           map[string]map[string]any
	AdditionalProperties any
	Required             []string
	OneOf                []reference
}

// alternatives returns the names of the schemas in oneOf.
func (s runtimeSchema) alternatives() string {
	var names []string
	for _, r := range s.OneOf {
		names = append(names, r.name())
	}
	return strings.Join(names, " ")
}

// compareMembers fails t if a struct and its schemas have different members, or if a schema
// of a frame that the service sends does not require a member that is always present.
func compareMembers(t *testing.T, goType reflect.Type, schemas map[string]runtimeSchema, names, without string) {
	t.Helper()
	want := wireMembers(goType)
	for member := range strings.FieldsSeq(without) {
		delete(want, member)
	}
	got := map[string]bool{}
	for _, name := range strings.Fields(names) {
		schema, exists := schemas[name]
		if !exists || schema.AdditionalProperties != false && name != "ChannelDatum" {
			t.Errorf("schema %s does not exist or allows other members", name)
		}
		for member := range schema.Properties {
			got[member] = true
		}
		input := strings.HasSuffix(name, "Request") || name == "SpeechReport" || strings.HasPrefix(name, "Runtime") && goType == reflect.TypeFor[wire.ChannelMessage]()
		for member, always := range want {
			if always && !input && !slices.Contains(schema.Required, member) {
				t.Errorf("schema %s does not require %s, which wire.%s always has", name, member, goType.Name())
			}
		}
	}
	documented, defined := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))
	if !slices.Equal(documented, defined) {
		t.Errorf("%s has the members\n%v, wire.%s has\n%v", names, documented, goType.Name(), defined)
	}
}

// The first frames have members that no example has.
func TestRuntimeFramesAreChecked(t *testing.T) {
	for _, raw := range []string{
		`{"id":1,"ok":{"channel":"ses_1","claim":"` + strings.Repeat("x", 26) + `","team":"tm_1","endpoint":"ep_1","position":"3-17","workItems":[{"workItemId":"w","kind":"tool","scope":"channel","deadline":5,"parked":true}],"lostAt":7}}`,
		`{"id":0,"error":{"code":"SERVICE_UNAVAILABLE","message":"m","details":{"retryAfterMs":100}}}`,
		`{"event":"entry","channel":"c","position":"1-5","entry":{"kind":"command","channelId":"c","at":5,"source":"bot","callbackId":"cb","workItemId":"w","apply":"immediate","command":{"type":"update_tts_config","source":"bot","config":{"provider":"a","later":1}}}}`,
	} {
		if err := CheckRuntimeFrame([]byte(raw)); err != nil {
			t.Error(err)
		}
	}
	for _, raw := range []string{`[]`, `{}`, `{"op":"wait","id":1}`, `{"event":"later"}`, `{"id":1,"ok":{},"ok":{}}`, `{"id":1}`, `{"id":1,"ok":{},"error":{"code":"NOT_FOUND","message":"m"}}`} {
		if CheckRuntimeRequest([]byte(raw)) == nil || CheckRuntimeFrame([]byte(raw)) == nil {
			t.Errorf("%s was accepted", raw)
		}
	}
}
