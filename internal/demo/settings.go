package demo

import (
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
)

// settings are a call's parameters, which commands change. The commands
// themselves hold them: a key that one does not have keeps its value.
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

// update changes what a command is about. Others, and those of no consequence
// without a phone line, change nothing.
func (s *settings) update(command wire.Command) {
	switch cmd := command.(type) {
	case *wire.UpdateDTMFConfig:
		overlay(&s.dtmf, cmd)
	case *wire.UpdateBotDelayConfig:
		overlay(&s.delay, cmd)
	case *wire.UpdateTTSConfig:
		overlay(&s.tts, &cmd.Config)
	case *wire.SetBargeIn:
		s.dtmf.BargeIn = cmd.Enabled
	case *wire.SetTTSVoice:
		s.voice = cmd.Voice
	case *wire.SetTTSSpeakingRate:
		s.rate = *cmd.Rate
	}
}

// overlay sets what a change holds, which is what its JSON shows.
func overlay[T any](current, change *T) {
	raw, err := json.Marshal(change)
	if err == nil {
		_ = json.Unmarshal(raw, current) // it was of that type a moment ago
	}
}

// of is what a pointer points to, and zero for what is not set.
func of[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func ms(n *int64) time.Duration { return time.Duration(of(n)) * time.Millisecond }
