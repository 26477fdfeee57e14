package team

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func validate(e *Endpoint) error {
	var issues fault.Issues
	e.Check(&issues)
	return issues.Err()
}

func TestCheckNormalizesEndpoint(t *testing.T) {
	e := Endpoint{TeamID: "t", Name: "  Front desk ", Modes: []Mode{Chat, WebRTC, Chat}, Origins: []string{"HTTPS://Shop.Example/", "https://shop.example:443", "http://localhost:8080", "http://[::1]:80"}}
	testkit.Must(t, validate(&e))
	if e.Name != "Front desk" || !slices.Equal(e.Modes, []Mode{WebRTC, Chat}) {
		t.Errorf("name %q and modes %v, want \"Front desk\" and [webrtc chat]", e.Name, e.Modes)
	}
	testkit.Equal(t, "origins", e.Origins, []string{"https://shop.example", "http://localhost:8080", "http://[::1]"})
}

func TestOriginOfWrongTypeIsReportedOnce(t *testing.T) {
	var issues fault.Issues
	issues.Add("/origins/0", fault.IssueType, "Must be a string.") // by the decoder, which leaves it empty
	e := Endpoint{TeamID: "t", Name: "n", Modes: Modes, Origins: []string{"", "shop"}}
	e.Check(&issues)
	if got := testkit.IssuePaths(issues.Err()); !slices.Equal(got, []string{"/origins/0", "/origins/1"}) {
		t.Errorf("issues at %v, want one for each origin", got)
	}
}

func TestCheckReportsEveryIssue(t *testing.T) {
	e := Endpoint{
		Modes: []Mode{"fax"}, Name: strings.Repeat("ü", 121),
		Origins: []string{"shop.example", "https://a/b", "ftp://a", "https://u:p@a", "https://a?x", "null", "*", "https://*.a", "https://a#f", "https://", "https://ok.example"},
		Profile: wire.GatewayProfile{CommandSources: []string{"mars"}},
	}
	want := []string{"/name", "/modes/0"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("/origins/%d", i))
	}
	want = append(want, "/gatewayProfile/commandSources/0")
	if got := testkit.IssuePaths(validate(&e)); !slices.Equal(got, want) {
		t.Errorf("issues at %v\nwant %v", got, want)
	}
	for path, e := range map[string]Endpoint{
		"/name":      {TeamID: "t", Name: " ", Modes: Modes},
		"/modes":     {TeamID: "t", Name: "n"},
		"/origins":   {TeamID: "t", Name: "n", Modes: Modes, Origins: make([]string, 101)},
		"/origins/1": {TeamID: "t", Name: "n", Modes: Modes, Origins: []string{"https://" + strings.Repeat("a", 292), "https://" + strings.Repeat("a", 293)}},
	} {
		if got := testkit.IssuePaths(validate(&e)); !slices.Equal(got, []string{path}) {
			t.Errorf("issues at %v, want only %s", got, path)
		}
	}
	if got := testkit.IssuePaths(validate(&Endpoint{TeamID: "t", Name: "a\nb", Modes: Modes})); !slices.Equal(got, []string{"/name"}) {
		t.Errorf("control character: issues at %v, want only /name", got)
	}
}

func TestParseProfileReportsEveryIssue(t *testing.T) {
	p, err := ParseProfile([]byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"],"later":1}],"theme":"dark"}`))
	if err != nil || string(p.Other) != `{"theme":"dark"}` || string(p.CommandPolicies[0].Other) != `{"later":1}` {
		t.Errorf("profile %+v (error %v), want the unknown members theme and later in Other", p, err)
	}
	_, err = ParseProfile([]byte(`{"commandSources":["bot","mars",7],"commandPolicies":[{"type":"fly","enabled":"yes"},{"type":"transfer","enabled":true,"allowedTargets":["http:*"]}],"actions":[]}`))
	want := []string{"/commandSources/2", "/commandPolicies/0/enabled", "/actions", "/commandSources/1", "/commandPolicies/0/type", "/commandPolicies/1/allowedTargets/0"}
	if got := testkit.IssuePaths(err); !slices.Equal(got, want) {
		t.Errorf("issues at %v\nwant %v", got, want)
	}
	for _, invalid := range []string{"", "{", `{"a":1,"a":2}`} {
		testkit.WantFault(t, fmt.Sprintf("%q", invalid), testkit.ErrorOf(ParseProfile([]byte(invalid))), fault.MalformedJSON)
	}
	testkit.WantFault(t, "array", testkit.ErrorOf(ParseProfile([]byte(`[]`))), fault.Validation)
}

func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","allowedTargets":["sip:*@x"]}],"z":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile(data)
		if err != nil {
			return
		}
		encoded, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("a valid profile cannot be encoded: %v", err)
		}
		if _, err := ParseProfile(encoded); err != nil {
			t.Fatalf("the encoded profile %s is invalid: %v", encoded, err)
		}
	})
}

func TestDeploymentCapabilitiesAreCompleteAndDeterministic(t *testing.T) {
	deployment := Deployment{"0.9.20", Features{WebRTC: true, APIAccess: true}}
	doc, err := deployment.Capabilities()
	testkit.Must(t, err)
	for range 20 {
		if again, err := deployment.Capabilities(); err != nil || !bytes.Equal(again, doc) {
			t.Fatalf("the document differs from call to call: %v", err)
		}
	}
	if other, err := (Deployment{"0.9.20", Features{}}).Capabilities(); err != nil || bytes.Equal(other, doc) {
		t.Errorf("another deployment has the same document: %v", err)
	}
	var got capabilities
	var members map[string]any
	testkit.Must(t, errors.Join(json.Unmarshal(doc, &got), json.Unmarshal(doc, &members)))
	testkit.Equal(t, "members", fmt.Sprint(slices.Sorted(maps.Keys(members))), "[audioFormats commands directions features limits messageTypes modes sessionParams version]")
	if got.Version != "0.9.20" || len(got.MessageTypes) != 11 || len(got.Modes) != 3 || !got.Features.WebRTC || len(got.AudioFormats) != 2 {
		t.Errorf("document %s, want version 0.9.20, 11 message types, 3 modes, webrtc and 2 audio formats", doc)
	}
	if params := got.SessionParams["properties"].(map[string]any); len(got.Commands) != len(command.Catalogue) || len(params) != len(command.SessionParams) {
		t.Errorf("%d commands and %d session parameters, want %d and %d", len(got.Commands), len(params), len(command.Catalogue), len(command.SessionParams))
	}
	for _, c := range got.Commands {
		if c.Apply == "" || len(c.Fields) == 0 {
			t.Errorf("command %s lacks apply or fields", c.Type)
		}
	}
	if l := got.Limits; l.CallbackBodyBytes != 1<<20 || l.SIPHeaders != 100 || l.SIPHeaderCharacters != 12000 || l.Channel.FrameBytes != 64<<10 {
		t.Errorf("limits %+v, want 1 MiB, 100 headers, 12000 characters and 64 KiB", l)
	}
}

func TestEndpointCapabilitiesListPermittedCommandsAndModes(t *testing.T) {
	deployment := Deployment{"0.9.20", Features{APIAccess: true, DisabledCommands: []string{"emit_event"}}}
	doc, err := deployment.endpointCapabilities(Endpoint{Name: "shop", Modes: []Mode{WebRTC, Chat}, Profile: wire.GatewayProfile{
		CommandSources:  []string{"bot"},
		CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}, {Type: "transfer"}, {Type: "emit_event", Enabled: true}},
		Speech:          wire.SpeechChain{STT: []string{"a"}},
	}})
	testkit.Must(t, err)
	var got capabilities
	testkit.Must(t, json.Unmarshal(doc, &got))
	if len(got.Commands) != 1 || got.Commands[0].Type != "hangup" || !slices.Equal(got.Modes, []Mode{Chat}) {
		t.Errorf("commands %v and modes %v, want hangup and chat", got.Commands, got.Modes)
	}
	if got.Endpoint.Name != "shop" || !slices.Equal(got.Endpoint.Speech.STT, []string{"a"}) || !slices.Equal(got.Endpoint.CommandSources, []string{"bot"}) {
		t.Errorf("endpoint %+v, want shop with STT a and source bot", got.Endpoint)
	}
}
