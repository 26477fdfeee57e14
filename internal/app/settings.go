package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/internal/synth"
)

// Platform returns the policy that applies to all flows. Its error is config.Problems,
// like that of config.Load.
func Platform(cfg config.Config) (command.PlatformPolicy, error) {
	platform, err := command.NewPlatformPolicy(cfg.CommandsDisabled, cfg.TransferTargets)
	var invalid *fault.Error
	if !errors.As(err, &invalid) {
		return platform, err
	}
	var problems config.Problems
	issues, _ := invalid.Details.([]fault.Issue)
	for _, i := range issues {
		p := config.Problem{Name: "TRANSFER_ALLOWED_TARGETS", Value: fmt.Sprintf("%q", strings.Join(cfg.TransferTargets, ",")), Text: i.Message}
		if strings.HasPrefix(i.Path, "/disabled/") {
			p.Name, p.Value = "COMMANDS_DISABLED", fmt.Sprintf("%q", strings.Join(cfg.CommandsDisabled, ","))
			var types []string
			for _, c := range command.Catalogue {
				types = append(types, c.Type)
			}
			p.Text += " Use " + strings.Join(types, ", ")
		}
		problems = append(problems, p)
	}
	return platform, problems
}

// channelLimits returns the limits of sessions' channels.
func channelLimits(cfg config.Config) channel.Limits {
	return channel.Limits{
		FrameBytes:      int64(cfg.MaxFrameBytes),
		QueuedBytes:     int64(cfg.MaxQueuedBytes),
		FramesPerSecond: cfg.FramesPerSecond,
		HistoryMessages: cfg.HistoryMessages,
		HistorySeconds:  int(cfg.HistoryTime.Seconds()),
		PingIntervalMs:  cfg.PingInterval.Milliseconds(),
		ReconnectJitter: cfg.ReconnectJitter,
	}
}

// storedLimits returns the limits of the history in the key-value store.
func storedLimits(cfg config.Config) wire.ChannelLimits {
	limits := wire.DefaultChannelLimits()
	limits.HistoryMessages, limits.HistoryMs = int64(cfg.HistoryMessages), cfg.HistoryTime.Milliseconds()
	return limits
}

// speechProviders returns the providers in SPEECH_PROVIDERS, in that order.
func speechProviders(ctx context.Context, cfg config.Config) (chain []speech.Provider, err error) {
	timeout := speech.ProviderTimeout(cfg.SpeechTimeout, len(cfg.SpeechProviders))
	for _, name := range cfg.SpeechProviders {
		var p speech.Provider
		switch name {
		case "openai":
			p = synth.NewOpenAI(synth.OpenAIOptions{
				URL: cfg.SpeechURL, Key: cfg.SpeechKey, Voice: cfg.SpeechVoice, Model: cfg.SpeechModel, Timeout: timeout,
			})
		case "espeak":
			if p, err = synth.NewEspeak(ctx, cfg.EspeakVoice, timeout); err != nil {
				return nil, fmt.Errorf("SPEECH_PROVIDERS, SPEECH_ESPEAK_VOICE: %w", err)
			}
		case "tone":
			p = synth.Tone{}
		}
		chain = append(chain, p)
	}
	return chain, nil
}
