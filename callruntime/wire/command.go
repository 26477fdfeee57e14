package wire

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// WorkItemKind is the kind of provider that answers a work item. Each kind has
// its own callback route.
type WorkItemKind string

// The kinds of work items.
const (
	BotItem  WorkItemKind = "bot"
	LLMItem  WorkItemKind = "llm"
	ToolItem WorkItemKind = "tool"
)

// WorkItemKinds lists all kinds.
var WorkItemKinds = []WorkItemKind{BotItem, LLMItem, ToolItem}

// Source returns the command source of callbacks of this kind.
func (k WorkItemKind) Source() string {
	switch k {
	case LLMItem:
		return SourceLLM
	case ToolItem:
		return SourceTool
	default:
		return SourceBot
	}
}

// The sources of a command. Each callback route is one source.
const (
	SourceBot  = "bot"
	SourceLLM  = "external_llm"
	SourceTool = "external_tool"
)

// Sources lists all sources.
var Sources = []string{SourceBot, SourceLLM, SourceTool}

// ApplyMode determines when the runtime executes a command.
type ApplyMode string

// The modes of applying a command.
const (
	ApplyImmediately   ApplyMode = "immediate"      // now, before queued playback
	ApplyAfterPlayback ApplyMode = "after_playback" // after queued playback
	ApplyInOrder       ApplyMode = "in_order"       // at its position among messages and commands
)

// Command is one managed runtime command: a pointer to one of the structs of
// this package.
type Command interface{ Common() *CommonFields }

// CommonFields are the fields that all commands share. The tag shape is the JSON type that
// internal/command requires.
type CommonFields struct {
	Type      string         `json:"type"`
	Source    string         `json:"source"`
	CommandID string         `json:"commandId,omitzero"`
	Metadata  jsontext.Value `json:"metadata,omitzero" shape:"object"`
	// RequireConfirmation and WaitForSilence come from the gateway profile, never
	// from the provider. The field Hangup.WaitForSilence hides this one.
	RequireConfirmation bool `json:"requireConfirmation,omitzero"`
	WaitForSilence      bool `json:"waitForSilence,omitzero"`
}

// Common implements Command.
func (c *CommonFields) Common() *CommonFields { return c }

// OtherCommand is a command of an unknown type. It is always denied.
type OtherCommand struct{ CommonFields }

// NewCommand returns an empty command of a type, or nil if the type is unknown.
func NewCommand(commandType string) Command {
	if build, ok := builders[commandType]; ok {
		c := build()
		c.Common().Type = commandType
		return c
	}
	return nil
}

var builders = map[string]func() Command{
	"hangup":                  func() Command { return new(Hangup) },
	"transfer":                func() Command { return new(Transfer) },
	"set_barge_in":            func() Command { return new(SetBargeIn) },
	"set_voice_input":         func() Command { return new(SetVoiceInput) },
	"update_stt_config":       func() Command { return new(UpdateSTTConfig) },
	"update_tts_config":       func() Command { return new(UpdateTTSConfig) },
	"set_tts_voice":           func() Command { return new(SetTTSVoice) },
	"set_tts_speaking_rate":   func() Command { return new(SetTTSSpeakingRate) },
	"play_audio":              func() Command { return new(PlayAudio) },
	"send_dtmf":               func() Command { return new(SendDTMF) },
	"update_dtmf_config":      func() Command { return new(UpdateDTMFConfig) },
	"update_bot_delay_config": func() Command { return new(UpdateBotDelayConfig) },
	"set_context":             func() Command { return new(SetContext) },
	"emit_event":              func() Command { return new(EmitEvent) },
}

// AnyCommand encodes and decodes a command of any type.
type AnyCommand struct{ Command }

// MarshalJSONTo encodes the command.
func (a AnyCommand) MarshalJSONTo(enc *jsontext.Encoder) error {
	return json.MarshalEncode(enc, a.Command)
}

// UnmarshalJSONFrom decodes the struct of the command's type. Unknown types become
// OtherCommand, so that an older runtime can read the stream of a newer service.
func (a *AnyCommand) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	raw, err := dec.ReadValue()
	if err != nil {
		return err
	}
	var other OtherCommand
	if err := json.Unmarshal(raw, &other); err != nil {
		return fmt.Errorf("decode command: %w", err)
	}
	if a.Command = NewCommand(other.Type); a.Command == nil {
		a.Command = &other
		return nil
	}
	if err := json.Unmarshal(raw, a.Command); err != nil {
		return fmt.Errorf("decode command %s: %w", other.Type, err)
	}
	return nil
}
