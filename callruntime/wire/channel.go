// Package wire defines the types that service and runtimes exchange: channel
// messages, entries of the runtime stream, managed commands and gateway profiles.
package wire

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ValidID reports whether id is a valid ID of a channel, message or work item: 1 to
// 128 characters from A-Z a-z 0-9 . _ : -, but not . or .. alone. Other IDs could end the
// hash tag of a key or change the path of a URL: HTTP clients remove . and .. from paths.
func ValidID(id string) bool {
	if id == "." || id == ".." {
		return false
	}
	return id != "" && len(id) <= 128 && strings.Trim(id, idCharacters) == "" // leaves an invalid character
}

const idCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"

// TokenPrefix lets secret scanners, and the service's log redaction, recognize a
// credential.
const TokenPrefix = "cbt_"

// tokenSecretLength is that of a credential's random part: 32 bytes in base64url.
const tokenSecretLength = 43

// TokenWorkItem returns the work item ID in a credential of the form TokenPrefix,
// the random part, a dot and the ID. It returns "" for any other form: then only the
// store knows the work item.
func TokenWorkItem(token string) string {
	rest, ok := strings.CutPrefix(token, TokenPrefix)
	secret, id, _ := strings.Cut(rest, ".")
	if !ok || len(secret) != tokenSecretLength || !ValidID(id) {
		return ""
	}
	return id
}

// ChannelLimits bound the data that the store keeps of a channel. They are fixed
// when the channel is opened.
type ChannelLimits struct {
	HistoryMessages int64
	HistoryMs       int64
	BacklogEntries  int64 // entries that the runtime has not committed
	BacklogBytes    int64
	IdleMs          int64 // a channel without activity ends after this time
	KeepMs          int64 // how long the store remembers an ended channel
}

// DefaultChannelLimits returns the default limits.
func DefaultChannelLimits() ChannelLimits {
	const minute, hour = 60_000, 3_600_000
	return ChannelLimits{
		HistoryMessages: 300, HistoryMs: 10 * minute,
		BacklogEntries: 10_000, BacklogBytes: 8 << 20,
		IdleMs: 24 * hour, KeepMs: 25 * hour,
	}
}

// Offer announces a session that no runtime has claimed. Its channel has the
// session's ID.
type Offer struct {
	SessionID  string         `json:"sessionId"`
	TeamID     string         `json:"teamId"`
	EndpointID string         `json:"endpointId"`
	Mode       string         `json:"mode"`
	Identity   *Identifier    `json:"identity,omitzero"`
	Metadata   jsontext.Value `json:"metadata,omitzero"`
	ExpiresAt  int64          `json:"expiresAt,omitzero"`  // Unix ms at which the session ends
	ICEServers []ICEServer    `json:"iceServers,omitzero"` // for the runtime's side, in mode webrtc
	Trace      Trace          `json:"trace,omitzero"`      // of the connection that caused the offer
}

// ICEServer is one entry of an RTCConfiguration.
type ICEServer struct {
	URLs       []string `json:"urls"`
	Username   string   `json:"username,omitzero"`
	Credential string   `json:"credential,omitzero"`
}

// SpeechReport is a usage report: the characters of one text that was synthesized. The
// service counts each ID once, no matter how often the report is sent.
type SpeechReport struct {
	ID         string `json:"id"` // a UUID
	TeamID     string `json:"teamId"`
	EndpointID string `json:"endpointId,omitzero"`
	Provider   string `json:"provider,omitzero"`
	Voice      string `json:"voice,omitzero"`
	Model      string `json:"model,omitzero"`
	Characters int64  `json:"characters"`      // Unicode code points of the text
	Cached     bool   `json:"cached,omitzero"` // served from a cache, without a provider
	At         int64  `json:"at"`              // Unix milliseconds
}

// GatewayProfile is an endpoint's policy for managed commands. Commands that it
// does not allow are denied.
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
