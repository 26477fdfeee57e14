package background

import (
	"testing"
	"time"
)

func TestBackoffDoublesUpToMax(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := b.Next(); got < want/2 || got > want*3/2 {
			t.Errorf("delay %v, want between %v and %v", got, want/2, want*3/2)
		}
	}
	b.Reset()
	if got := b.Next(); got > 150*time.Millisecond {
		t.Errorf("delay %v after Reset, want at most 150ms", got)
	}
}
