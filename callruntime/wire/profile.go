// Package wire defines the types that service and runtimes exchange: channel
// messages, entries of the runtime stream, managed commands and gateway profiles.
package wire

import "github.com/go-json-experiment/json/jsontext"

// GatewayProfile is a flow's policy for managed commands. Commands that it does
// not allow are denied.
type GatewayProfile struct {
	CommandSources  []string        `json:"commandSources,omitempty"`
	CommandPolicies []CommandPolicy `json:"commandPolicies,omitempty"`
	Actions         Actions         `json:"actions,omitzero"`
	Speech          SpeechChain     `json:"speech,omitzero"`
	// Other keeps unknown members, here and in the nested types, so that the
	// profile of a newer console survives a round trip.
	Other jsontext.Value `json:",embed"`
}

// CommandPolicy is the policy for one command type.
type CommandPolicy struct {
	Type                string         `json:"type"`
	Enabled             bool           `json:"enabled"`
	RequireConfirmation bool           `json:"requireConfirmation,omitzero"`
	WaitForSilence      bool           `json:"waitForSilence,omitzero"`
	AllowedTargets      []string       `json:"allowedTargets,omitempty"`
	AllowedHeaders      []string       `json:"allowedHeaders,omitempty"`
	Other               jsontext.Value `json:",embed"`
}

// Actions holds the defaults of managed hangups and transfers.
type Actions struct {
	Hangup   *HangupDefaults   `json:"hangup,omitempty"`
	Transfer *TransferDefaults `json:"transfer,omitempty"`
	Other    jsontext.Value    `json:",embed"`
}

// HangupDefaults are used for fields that a hangup omits.
type HangupDefaults struct {
	Reason               string         `json:"reason,omitzero"`
	WaitForSilence       *bool          `json:"waitForSilence,omitempty"`
	DelayBotDisconnectMs *int64         `json:"delayBotDisconnectMs,omitempty"`
	Other                jsontext.Value `json:",embed"`
}

// TransferDefaults are used for fields that a transfer omits. Target is always
// allowed.
type TransferDefaults struct {
	Target     string         `json:"target,omitzero"`
	Message    string         `json:"message,omitzero"`
	CanConfirm *bool          `json:"canConfirm,omitempty"`
	Other      jsontext.Value `json:",embed"`
}

// SpeechChain lists the speech providers that a call may use.
type SpeechChain struct {
	STT   []string       `json:"stt,omitempty"`
	TTS   []string       `json:"tts,omitempty"`
	Other jsontext.Value `json:",embed"`
}
