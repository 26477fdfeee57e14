package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

// An operation fails at its caller's deadline. Operations of other callers on the
// same connection continue.
func TestCallerDeadlineEndsOnlyItsOwnOperation(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	r.Freeze()
	other := make(chan error, 1)
	go func() { other <- s.Announce(t.Context(), "topic") }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Lease(ctx, "key", 1, 1, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("operation with a short deadline: got %v, want a deadline error", err)
	}
	select {
	case err := <-other:
		t.Errorf("operation without a deadline ended as well: %v", err)
	default:
	}
	r.Thaw()
	if err := <-other; err != nil {
		t.Errorf("operation without a deadline: %v", err)
	}
}

// Close stops the renewal of leases and cancels their contexts.
func TestCloseEndsLeases(t *testing.T) {
	t.Parallel()
	s, _ := connect(t, redisOptions(testkit.StartRedis(t)))
	leaseCtx, release, held, err := NewLeases(s).Try(t.Context(), uuid.NewString())
	if err != nil || !held {
		t.Fatalf("lease not acquired: held %v, %v", held, err)
	}
	s.Close()
	if leaseCtx.Err() == nil {
		t.Error("lease context is not cancelled after Close")
	}
	release()
	if s.tasks.Go(t.Context(), func(context.Context) {}) == nil {
		t.Error("a closed store started a goroutine")
	}
}
