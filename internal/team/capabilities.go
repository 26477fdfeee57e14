package team

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/command"
)

// Features is the part of the configuration that capabilities report.
type Features struct {
	WebRTC           bool                     `json:"webrtc"`
	APIAccess        bool                     `json:"apiAccess"`
	DisabledCommands []string                 `json:"-"` // for all endpoints
	Channel          channel.ConnectionLimits `json:"-"` // zero: channel.DefaultConnectionLimits
}

// Deployment is the part of the capabilities that all endpoints share.
type Deployment struct {
	Version  string
	Features Features
}

// RequestLimits are the limits of requests and sessions, as published to clients.
type RequestLimits struct {
	CallbackBodyBytes int64 `json:"callbackBodyBytes"`
	SIPHeaders        int   `json:"sipHeaders"`
	// SIPHeaderCharacters exceeds the maximum total length of all names and values
	// by one.
	SIPHeaderCharacters int                      `json:"sipHeaderCharactersBelow"`
	MetadataBytes       int64                    `json:"metadataBytes"`
	TokenTTLSeconds     Range                    `json:"tokenTtlSeconds"`
	SessionSeconds      Range                    `json:"sessionSeconds"`
	Channel             channel.ConnectionLimits `json:",embed"`
}

// Range is the range of a setting and its default.
type Range struct {
	Min     int `json:"min"`
	Max     int `json:"max"`
	Default int `json:"default"`
}

// DefaultRequestLimits returns the limits of a deployment with default configuration. Only those
// of channels can be configured.
func DefaultRequestLimits() RequestLimits {
	return RequestLimits{
		CallbackBodyBytes:   1 << 20,
		SIPHeaders:          command.MaxSIPHeaders,
		SIPHeaderCharacters: command.SIPHeaderCharacters,
		MetadataBytes:       4 << 10,
		TokenTTLSeconds:     Range{10, 3600, 300},
		SessionSeconds:      Range{60, 86400, 3600},
		Channel:             channel.DefaultConnectionLimits(),
	}
}

// audioFormat is an audio encoding.
type audioFormat struct {
	Encoding   string `json:"encoding"`
	Sample     string `json:"sample"`
	SampleRate int    `json:"sampleRate,omitzero"` // 0: any
}

var audioFormats = []audioFormat{{"alaw", "a-law, 8 bit", 8000}, {"pcm", "s16le", 0}}

// EndpointCapabilities is the short form of an endpoint's capabilities.
type EndpointCapabilities struct {
	Modes          []Mode           `json:"modes"`
	Commands       []string         `json:"commands"`
	CommandSources []string         `json:"commandSources"`
	Speech         wire.SpeechChain `json:"speech"`
}

// capabilities is the document about a deployment or an endpoint.
type capabilities struct {
	Version       string             `json:"version"`
	Endpoint      *endpointDetails   `json:"endpoint,omitzero"` // nil: about the deployment
	Features      Features           `json:"features"`
	Modes         []Mode             `json:"modes"`
	MessageTypes  []wire.MessageType `json:"messageTypes"`
	Directions    []wire.Direction   `json:"directions"`
	Commands      []command.Spec     `json:"commands"`
	SessionParams map[string]any     `json:"sessionParams"`
	AudioFormats  []audioFormat      `json:"audioFormats"`
	Limits        RequestLimits      `json:"limits"`
}

type endpointDetails struct {
	ID             string           `json:"id"`
	Name           string           `json:"name"`
	Enabled        bool             `json:"enabled"`
	CommandSources []string         `json:"commandSources"`
	Speech         wire.SpeechChain `json:"speech"`
}

// Capabilities returns the JSON document about the whole deployment.
func (d Deployment) Capabilities() ([]byte, error) { return d.encode(nil, Modes, d.commandEnabled) }

// endpointCapabilities returns the document about one endpoint: its modes, the commands its
// profile permits, its speech providers.
func (d Deployment) endpointCapabilities(e Endpoint) ([]byte, error) {
	summary := d.summary(e)
	details := &endpointDetails{e.ID, e.Name, e.Enabled, summary.CommandSources, summary.Speech}
	return d.encode(details, e.Modes, func(commandType string) bool { return slices.Contains(summary.Commands, commandType) })
}

func (d Deployment) encode(details *endpointDetails, modes []Mode, permitted func(commandType string) bool) ([]byte, error) {
	commands := slices.DeleteFunc(slices.Clone(command.Catalogue), func(c command.Spec) bool { return !permitted(c.Type) })
	limits := DefaultRequestLimits()
	limits.Channel = cmp.Or(d.Features.Channel, limits.Channel)
	body, err := json.Marshal(capabilities{
		Version: d.Version, Endpoint: details, Features: d.Features, Modes: d.enabledModes(modes),
		MessageTypes: wire.MessageTypes, Directions: wire.Directions, Commands: commands,
		SessionParams: command.SessionParamsSchema(), AudioFormats: audioFormats, Limits: limits,
	}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode capabilities: %w", err)
	}
	return body, nil
}

func (d Deployment) summary(e Endpoint) EndpointCapabilities {
	summary := EndpointCapabilities{
		Modes: d.enabledModes(e.Modes), Commands: []string{}, Speech: e.Profile.Speech,
		CommandSources: append([]string{}, e.Profile.CommandSources...),
	}
	for _, c := range command.Catalogue {
		permitted := func(policy wire.CommandPolicy) bool { return policy.Type == c.Type && policy.Enabled }
		if d.commandEnabled(c.Type) && len(summary.CommandSources) > 0 && slices.ContainsFunc(e.Profile.CommandPolicies, permitted) {
			summary.Commands = append(summary.Commands, c.Type)
		}
	}
	return summary
}

func (d Deployment) enabledModes(modes []Mode) []Mode {
	return slices.DeleteFunc(append([]Mode{}, modes...), func(m Mode) bool { return m == WebRTC && !d.Features.WebRTC })
}

func (d Deployment) commandEnabled(commandType string) bool {
	return !slices.Contains(d.Features.DisabledCommands, commandType)
}
