package demo

import (
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
)

// settings are the parameters of a call. Commands change them.
type settings struct {
	dtmf  wire.UpdateDTMFConfig
	delay wire.UpdateBotDelayConfig
	tts   wire.SpeechConfig
	voice string
	rate  float64
}

func defaultSettings() settings {
	return settings{
		dtmf: wire.UpdateDTMFConfig{SendDTMF: new(true), BargeIn: new(true)},
		delay: wire.UpdateBotDelayConfig{
			BotNoInputTimeoutMs: new(int64(5_000)), BotNoInputSpeech: new("One moment, please."), BotNoInputRetries: new(int64(1)),
			BotNoInputGiveUpTimeoutMs: new(int64(30_000)), AbortPlayOnBotMessage: new(true),
		},
	}
}

// update applies a command. Commands that only matter for phone calls are ignored.
func (s *settings) update(command wire.Command) {
	switch cmd := command.(type) {
	case *wire.UpdateDTMFConfig:
		merge(&s.dtmf, cmd)
	case *wire.UpdateBotDelayConfig:
		merge(&s.delay, cmd)
	case *wire.UpdateTTSConfig:
		merge(&s.tts, &cmd.Config)
	case *wire.SetBargeIn:
		s.dtmf.BargeIn = cmd.Enabled
	case *wire.SetTTSVoice:
		s.voice = cmd.Voice
	case *wire.SetTTSSpeakingRate:
		s.rate = *cmd.Rate
	}
}

// merge sets the members that are present in the JSON of change.
func merge[T any](current, change *T) {
	raw, err := json.Marshal(change)
	if err == nil {
		_ = json.Unmarshal(raw, current) // cannot fail: it has the same type
	}
}

// valueOf returns the zero value for nil.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func ms(n *int64) time.Duration { return time.Duration(valueOf(n)) * time.Millisecond }
