package app

import (
	"context"
	"fmt"

	"telapi/internal/config"
	"telapi/internal/speech"
	"telapi/internal/synth"
)

// speechProviders is the chain that SPEECH_PROVIDERS names.
func speechProviders(ctx context.Context, cfg config.Config) (chain []speech.Provider, err error) {
	for _, name := range cfg.SpeechProviders {
		var p speech.Provider
		switch name {
		case "openai":
			p = synth.NewOpenAI(synth.OpenAIOptions{
				URL: cfg.SpeechURL, Key: cfg.SpeechKey, Voice: cfg.SpeechVoice, Model: cfg.SpeechModel, Timeout: cfg.SpeechTimeout,
			})
		case "espeak":
			if p, err = synth.NewEspeak(ctx, cfg.EspeakVoice, cfg.SpeechTimeout); err != nil {
				return nil, fmt.Errorf("SPEECH_PROVIDERS, SPEECH_ESPEAK_VOICE: %w", err)
			}
		case "tone":
			p = synth.Tone{}
		}
		chain = append(chain, p)
	}
	return chain, nil
}
