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
		providers, err := speechProviders(t.Context(), cfg)
		if err != nil || len(providers) != others+1 {
			t.Fatalf("got %d providers and error %v, want %d", len(providers), err, others+1)
		}
		if got, want := providers[0].(*synth.OpenAI).Timeout, speech.ProviderTimeout(10*time.Minute, others+1); got != want {
			t.Errorf("timeout before %d other providers: %v, want %v", others, got, want)
		}
	}
}
