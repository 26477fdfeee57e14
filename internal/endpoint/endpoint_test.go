package endpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// issuePaths returns the paths of the issues in a validation error.
func issuePaths(err error) []string {
	var e *fault.Error
	if !errors.As(err, &e) {
		return nil
	}
	var paths []string
	issues, _ := e.Details.([]fault.Issue)
	for _, i := range issues {
		paths = append(paths, i.Path)
	}
	return paths
}

func validate(e *Endpoint) error {
	var issues fault.Issues
	e.Check(&issues)
	return issues.Err()
}

func TestCheckNormalizesEndpoint(t *testing.T) {
	e := Endpoint{TeamID: "t", Name: "  Front desk ", Modes: []Mode{Chat, WebRTC, Chat}, Origins: []string{"HTTPS://Shop.Example/", "https://shop.example:443", "http://localhost:8080", "http://[::1]:80"}}
	if err := validate(&e); err != nil {
		t.Fatal(err)
	}
	if e.Name != "Front desk" || !slices.Equal(e.Modes, []Mode{WebRTC, Chat}) {
		t.Errorf("name %q and modes %v, want \"Front desk\" and [webrtc chat]", e.Name, e.Modes)
	}
	if want := []string{"https://shop.example", "http://localhost:8080", "http://[::1]"}; !slices.Equal(e.Origins, want) {
		t.Errorf("origins %v, want %v", e.Origins, want)
	}
}

func TestCheckReportsEveryIssue(t *testing.T) {
	e := Endpoint{
		Modes: []Mode{"fax"}, Name: strings.Repeat("ü", 121),
		Origins: []string{"shop.example", "https://a/b", "ftp://a", "https://u:p@a", "https://a?x", "null", "*", "https://*.a", "https://a#f", "https://", "https://ok.example"},
		Profile: wire.GatewayProfile{CommandSources: []string{"mars"}},
	}
	want := []string{"/name", "/teamId", "/modes/0"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("/origins/%d", i))
	}
	want = append(want, "/gatewayProfile/commandSources/0")
	if got := issuePaths(validate(&e)); !slices.Equal(got, want) {
		t.Errorf("issues at %v\nwant %v", got, want)
	}
	for path, e := range map[string]Endpoint{
		"/name":      {TeamID: "t", Name: " ", Modes: Modes},
		"/modes":     {TeamID: "t", Name: "n"},
		"/origins":   {TeamID: "t", Name: "n", Modes: Modes, Origins: make([]string, 101)},
		"/origins/1": {TeamID: "t", Name: "n", Modes: Modes, Origins: []string{"https://" + strings.Repeat("a", 292), "https://" + strings.Repeat("a", 293)}},
	} {
		if got := issuePaths(validate(&e)); !slices.Equal(got, []string{path}) {
			t.Errorf("issues at %v, want only %s", got, path)
		}
	}
	if got := issuePaths(validate(&Endpoint{TeamID: "t", Name: "a\nb", Modes: Modes})); !slices.Equal(got, []string{"/name"}) {
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
	if got := issuePaths(err); !slices.Equal(got, want) {
		t.Errorf("issues at %v\nwant %v", got, want)
	}
	for _, invalid := range []string{"", "{", `{"a":1,"a":2}`} {
		if _, err := ParseProfile([]byte(invalid)); !fault.Is(err, fault.MalformedJSON) {
			t.Errorf("%q: error %v, want %s", invalid, err, fault.MalformedJSON)
		}
	}
	if _, err := ParseProfile([]byte(`[]`)); !fault.Is(err, fault.Validation) {
		t.Errorf("array: error %v, want %s", err, fault.Validation)
	}
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
