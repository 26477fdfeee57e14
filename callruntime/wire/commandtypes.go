package wire

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Optional fields are pointers, strings or raw values and are omitted if unset: an
// absent member keeps the call's current value. The tag shape restricts the type
// of a raw value, max the length of a list. A command without a required field is denied.

// Hangup ends the call after optional playback drain and disconnect delay.
type Hangup struct {
	CommonFields
	Reason               string `json:"reason,omitzero"`
	WaitForSilence       *bool  `json:"waitForSilence,omitzero"`
	DelayBotDisconnectMs *int64 `json:"delayBotDisconnectMs,omitzero"`
	CallControl
}

// Transfer transfers the call to a configured or allowed destination. It has no
// Target if the TransferMethod is sip_bye.
type Transfer struct {
	CommonFields
	Target       string `json:"target,omitzero"`
	Message      string `json:"message,omitzero"`
	CanConfirm   *bool  `json:"canConfirm,omitzero"`
	HangupReason string `json:"hangupReason,omitzero"` // fallback reason for sip_bye
	CallControl
}

// CallControl holds further fields of hangups and transfers that come from a
// bot's control event.
type CallControl struct {
	TransferMethod                string      `json:"transferMethod,omitzero"`
	TransferReferOutcomeMode      string      `json:"transferReferOutcomeMode,omitzero"`
	TransferReferredByURL         string      `json:"transferReferredByURL,omitzero"`
	TransferNotifications         *bool       `json:"transferNotifications,omitzero"`
	TransferNotificationsHangupMS *float64    `json:"transferNotificationsHangupMS,omitzero"`
	TransferRoutingPool           string      `json:"transferRoutingPool,omitzero"`
	TransferSIPHeaders            []NameValue `json:"transferSipHeaders,omitempty" max:"100"`
	TransferSIPQueryParams        NameValues  `json:"transferSipQueryParams,omitzero"`
	SIPQueryParams                NameValues  `json:"sipQueryParams,omitzero"`
	HandoverReason                string      `json:"handoverReason,omitzero"`
	HangupSIPHeaders              []NameValue `json:"hangupSipHeaders,omitempty" max:"100"`
	// BotOperationResult and BotOperationData are used for call records and call
	// status even if the command is denied.
	BotOperationResult string         `json:"botOperationResult,omitzero"`
	BotOperationData   jsontext.Value `json:"botOperationData,omitzero" shape:"object"`
	// SessionParams are informational. Only update_* commands, which the policy
	// checks, change a call's parameters.
	SessionParams jsontext.Value `json:"sessionParams,omitzero" shape:"object"`
}

// SetBargeIn enables or disables caller barge-in.
type SetBargeIn struct {
	CommonFields
	Enabled *bool `json:"enabled,omitzero" required:"true"`
}

// SetVoiceInput enables or disables voice input and can clear buffered input.
type SetVoiceInput struct {
	CommonFields
	Enabled     *bool `json:"enabled,omitzero"`
	ClearBuffer *bool `json:"clearBuffer,omitzero"`
}

// SpeechConfig holds settings of speech recognition or synthesis. Provider is one
// of the configured chain.
type SpeechConfig struct {
	Provider            *string `json:"provider,omitzero"`
	ConnectionTimeoutMs *int64  `json:"connectionTimeoutMs,omitzero"`
	Retries             *int64  `json:"retries,omitzero"`
	// Other holds further settings as the provider sent them. The service does not
	// check them.
	Other jsontext.Value `json:",embed"`
}

// UpdateSTTConfig changes speech recognition of the active call.
type UpdateSTTConfig struct {
	CommonFields
	Config *SpeechConfig `json:"config,omitzero" required:"true"`
}

// UpdateTTSConfig changes speech synthesis of the active call.
type UpdateTTSConfig struct {
	CommonFields
	Config *SpeechConfig `json:"config,omitzero" required:"true"`
}

// SetTTSVoice changes the voice.
type SetTTSVoice struct {
	CommonFields
	Voice string `json:"voice,omitzero" required:"true"`
}

// SetTTSSpeakingRate changes the speaking rate.
type SetTTSSpeakingRate struct {
	CommonFields
	Rate *float64 `json:"rate,omitzero" required:"true"`
}

// PlayAudio plays an audio item. Media is a string or an object that identifies it.
type PlayAudio struct {
	CommonFields
	Media jsontext.Value `json:"media,omitzero" required:"true"`
}

// SendDTMF sends digits on the call leg.
type SendDTMF struct {
	CommonFields
	Digits string `json:"digits,omitzero" required:"true"`
}

// UpdateDTMFConfig changes digit collection and barge-in.
type UpdateDTMFConfig struct {
	CommonFields
	Enabled             *bool   `json:"enabled,omitzero"`
	SendDTMF            *bool   `json:"sendDTMF,omitzero"`
	BargeIn             *bool   `json:"bargeIn,omitzero"`
	BargeInOnDTMF       *bool   `json:"bargeInOnDTMF,omitzero"`
	BargeInMinWordCount *int64  `json:"bargeInMinWordCount,omitzero"`
	DTMFDigits          *string `json:"dtmfDigits,omitzero"`
	MaxDigits           *int64  `json:"maxDigits,omitzero"`
	TimeoutMs           *int64  `json:"timeoutMs,omitzero"`
	InterDigitTimeoutMs *int64  `json:"interDigitTimeoutMs,omitzero"`
	Terminator          *string `json:"terminator,omitzero"` // empty: no digit submits
}

// UpdateBotDelayConfig changes the behaviour while the bot has not answered.
type UpdateBotDelayConfig struct {
	CommonFields
	BotNoInputTimeoutMs        *int64  `json:"botNoInputTimeoutMs,omitzero"`
	BotNoInputSpeech           *string `json:"botNoInputSpeech,omitzero"`
	BotNoInputURL              *string `json:"botNoInputUrl,omitzero"`
	BotNoInputRetries          *int64  `json:"botNoInputRetries,omitzero"`
	BotNoInputGiveUpTimeoutMs  *int64  `json:"botNoInputGiveUpTimeoutMs,omitzero"`
	AbortPlayOnBotMessage      *bool   `json:"abortPlayOnBotMessage,omitzero"`
	ResumeRecognitionTimeoutMs *int64  `json:"resumeRecognitionTimeoutMs,omitzero"`
	ResumeRecognitionSpeech    *string `json:"resumeRecognitionSpeech,omitzero"`
}

// SetContext writes runtime context variables.
type SetContext struct {
	CommonFields
	Values jsontext.Value `json:"values,omitzero" shape:"object" required:"true"`
}

// EmitEvent emits a runtime event.
type EmitEvent struct {
	CommonFields
	Event   string         `json:"event,omitzero" required:"true"`
	Payload jsontext.Value `json:"payload,omitzero"`
}

// NameValue is one SIP header or query parameter.
type NameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`

	valueless bool
}

// HasValue reports whether a value, possibly empty, was given.
func (n NameValue) HasValue() bool { return !n.valueless }

// UnmarshalJSONFrom distinguishes a missing value from an empty one.
func (n *NameValue) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var members struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	}
	if err := json.UnmarshalDecode(dec, &members); err != nil {
		return err
	}
	*n = NameValue{Name: members.Name, valueless: members.Value == nil}
	if members.Value != nil {
		n.Value = *members.Value
	}
	return nil
}

// NameValues are query parameters, given as an object or as a list. They keep
// their form and order.
type NameValues struct {
	List     []NameValue
	AsObject bool
}

// MarshalJSONTo encodes the parameters in their original form.
func (n NameValues) MarshalJSONTo(enc *jsontext.Encoder) error {
	if !n.AsObject {
		return json.MarshalEncode(enc, n.List)
	}
	tokens := []jsontext.Token{jsontext.BeginObject}
	for _, p := range n.List {
		tokens = append(tokens, jsontext.String(p.Name), jsontext.String(p.Value))
	}
	for _, token := range append(tokens, jsontext.EndObject) {
		if err := enc.WriteToken(token); err != nil {
			return err
		}
	}
	return nil
}

// UnmarshalJSONFrom decodes both forms.
func (n *NameValues) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*n = NameValues{AsObject: dec.PeekKind() == '{'}
	if !n.AsObject {
		return json.UnmarshalDecode(dec, &n.List)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		var p NameValue
		if err := json.UnmarshalDecode(dec, &p.Name); err != nil {
			return err
		}
		p.valueless = dec.PeekKind() == 'n'
		if err := json.UnmarshalDecode(dec, &p.Value); err != nil {
			return err
		}
		n.List = append(n.List, p)
	}
	_, err := dec.ReadToken()
	return err
}
