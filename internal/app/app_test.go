package app

import (
	"testing"
	"time"

	"telapi/internal/config"
	"telapi/internal/speech"
	"telapi/internal/synth"
)

func TestProviderTimeoutLeavesTimeForOthers(t *testing.T) {
	for _, others := range []int{0, 1, 2} {
		cfg := config.Config{SpeechProviders: append([]string{"openai"}, []string{"tone", "tone"}[:others]...), SpeechTimeout: 10 * time.Minute}
		chain, err := speechProviders(t.Context(), cfg)
		if err != nil || len(chain) != others+1 {
			t.Fatalf("%d providers, %v", len(chain), err)
		}
		if waits, want := chain[0].(*synth.OpenAI).Timeout, speech.ProviderTimeout(10*time.Minute, others+1); waits != want {
			t.Errorf("timeout before %d other providers: %v, want %v", others, waits, want)
		}
	}
}
