// Package wire owns the types that both sides of the runtime contract share:
// the browser's envelope, the managed commands, the flow's gateway profile and
// every key name of the store.
package wire

import "github.com/go-json-experiment/json/jsontext"

// GatewayProfile is what a flow permits a callback to drive. What it does not
// permit is denied.
type GatewayProfile struct {
	CommandSources  []string        `json:"commandSources,omitempty"`
	CommandPolicies []CommandPolicy `json:"commandPolicies,omitempty"`
	Actions         Actions         `json:"actions,omitzero"`
	Speech          SpeechChain     `json:"speech,omitzero"`
	// Other keeps members this version does not know, here and in every part,
	// so that a newer console's profile survives a round trip.
	Other jsontext.Value `json:",embed"`
}

// CommandPolicy permits one command type.
type CommandPolicy struct {
	Type                string         `json:"type"`
	Enabled             bool           `json:"enabled"`
	RequireConfirmation bool           `json:"requireConfirmation,omitzero"`
	WaitForSilence      bool           `json:"waitForSilence,omitzero"`
	AllowedTargets      []string       `json:"allowedTargets,omitempty"`
	AllowedHeaders      []string       `json:"allowedHeaders,omitempty"`
	Other               jsontext.Value `json:",embed"`
}

// Actions are the defaults of managed hangups and transfers.
type Actions struct {
	Hangup   *HangupDefaults   `json:"hangup,omitempty"`
	Transfer *TransferDefaults `json:"transfer,omitempty"`
	Other    jsontext.Value    `json:",embed"`
}

// HangupDefaults fill what a hangup leaves open.
type HangupDefaults struct {
	Reason               string         `json:"reason,omitzero"`
	WaitForSilence       *bool          `json:"waitForSilence,omitempty"`
	DelayBotDisconnectMs *int64         `json:"delayBotDisconnectMs,omitempty"`
	Other                jsontext.Value `json:",embed"`
}

// TransferDefaults fill what a transfer leaves open. Target is the configured
// destination, always permitted.
type TransferDefaults struct {
	Target     string         `json:"target,omitzero"`
	Message    string         `json:"message,omitzero"`
	CanConfirm *bool          `json:"canConfirm,omitempty"`
	Other      jsontext.Value `json:",embed"`
}

// SpeechChain names the providers a call may switch between.
type SpeechChain struct {
	STT   []string       `json:"stt,omitempty"`
	TTS   []string       `json:"tts,omitempty"`
	Other jsontext.Value `json:",embed"`
}
