package endpoint

import (
	"bytes"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
)

func TestDeploymentCapabilitiesAreCompleteAndDeterministic(t *testing.T) {
	deployment := Deployment{"0.9.18", Features{WebRTC: true, APIAccess: true}}
	doc, err := deployment.Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, err := deployment.Capabilities(); err != nil || !bytes.Equal(again, doc) {
			t.Fatalf("the document differs from call to call: %v", err)
		}
	}
	if other, err := (Deployment{"0.9.19", Features{}}).Capabilities(); err != nil || bytes.Equal(other, doc) {
		t.Errorf("another deployment has the same document: %v", err)
	}
	var got struct {
		Version      string          `json:"version"`
		Features     map[string]bool `json:"features"`
		Modes        []Mode          `json:"modes"`
		MessageTypes []string        `json:"messageTypes"`
		Commands     []struct {
			Type, Apply string
			Fields      []struct{ Name, Type string }
		} `json:"commands"`
		SessionParams struct {
			Properties map[string]map[string]any `json:"properties"`
		} `json:"sessionParams"`
		AudioFormats []AudioFormat `json:"audioFormats"`
		Limits       Limits        `json:"limits"`
	}
	if err := json.Unmarshal(doc, &got, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	if got.Version != "0.9.18" || len(got.MessageTypes) != 11 || len(got.Modes) != 3 || !got.Features["webrtc"] || len(got.AudioFormats) != 2 {
		t.Errorf("document %+v, want version 0.9.18, 11 message types, 3 modes, webrtc and 2 audio formats", got)
	}
	if len(got.Commands) != len(command.Catalogue) || len(got.SessionParams.Properties) != len(command.SessionParams) {
		t.Errorf("%d commands and %d session parameters, want %d and %d",
			len(got.Commands), len(got.SessionParams.Properties), len(command.Catalogue), len(command.SessionParams))
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
	deployment := Deployment{"0.9.18", Features{APIAccess: true, DisabledCommands: []string{"emit_event"}}}
	doc, err := deployment.endpointCapabilities(Endpoint{Name: "shop", Modes: []Mode{WebRTC, Chat}, Profile: wire.GatewayProfile{
		CommandSources:  []string{"bot"},
		CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}, {Type: "transfer"}, {Type: "emit_event", Enabled: true}},
		Speech:          wire.SpeechChain{STT: []string{"a"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got capabilities
	if err := json.Unmarshal(doc, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Commands) != 1 || got.Commands[0].Type != "hangup" || !slices.Equal(got.Modes, []Mode{Chat}) {
		t.Errorf("commands %v and modes %v, want hangup and chat", got.Commands, got.Modes)
	}
	if got.Endpoint.Name != "shop" || !slices.Equal(got.Endpoint.Speech.STT, []string{"a"}) || !slices.Equal(got.Endpoint.CommandSources, []string{"bot"}) {
		t.Errorf("endpoint %+v, want shop with STT a and source bot", got.Endpoint)
	}
}
