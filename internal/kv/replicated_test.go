package kv

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A script that has to wait for others stops waiting at its deadline.
func TestWaitForOthersEndsWithContext(t *testing.T) {
	script := ReplicatedScripts(1, "frame")["frame"]
	for range maxWaiting {
		script.waiting <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := script.Exec(ctx, nil, "channel", nil).Error(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec: %v, want %v", err, context.DeadlineExceeded)
	}
}
