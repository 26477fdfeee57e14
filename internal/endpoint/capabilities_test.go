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
		t.Errorf("%+v", got)
	}
	if len(got.Commands) != len(command.Catalogue) || len(got.SessionParams.Properties) != len(command.SessionParams) {
		t.Errorf("%d commands, %d parameters", len(got.Commands), len(got.SessionParams.Properties))
	}
	for _, c := range got.Commands {
		if c.Apply == "" || len(c.Fields) == 0 {
			t.Errorf("%s is not described", c.Type)
		}
	}
	if l := got.Limits; l.CallbackBodyBytes != 1<<20 || l.SIPHeaders != 100 || l.SIPHeaderCharacters != 12000 || l.Channel.FrameBytes != 64<<10 {
		t.Errorf("%+v", l)
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
		t.Errorf("commands %v, modes %v", got.Commands, got.Modes)
	}
	if got.Endpoint.Name != "shop" || !slices.Equal(got.Endpoint.Speech.STT, []string{"a"}) || !slices.Equal(got.Endpoint.CommandSources, []string{"bot"}) {
		t.Errorf("%+v", got.Endpoint)
	}
}
