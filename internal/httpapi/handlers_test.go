package httpapi

import (
	"testing"
	"time"
)

func TestAudioMaxAgeEndsAtExpiry(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]string{
		time.Minute:  "private, max-age=60",
		time.Second:  "private, max-age=1",
		0:            "private, max-age=0",
		-time.Second: "private, max-age=0", // expired after it was opened
	} {
		if got := cacheUntil(now.Add(left), now); got != want {
			t.Errorf("%v left: %q, want %q", left, got, want)
		}
	}
}
