package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/fault"
	"telapi/test/servers"
)

// An operation ends at its caller's deadline. Operations of other callers on the
// same connection continue.
func TestCallerDeadlineEndsOnlyItsOwnOperation(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	r.Freeze()
	patient := make(chan error, 1)
	go func() { patient <- s.Announce(t.Context(), "topic") }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Lease(ctx, "key", 1, 1, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("operation with a short deadline: %v", err)
	}
	select {
	case err := <-patient:
		t.Errorf("the other operation ended as well: %v", err)
	default:
	}
	r.Thaw()
	if err := <-patient; err != nil {
		t.Errorf("the other operation: %v", err)
	}
}

// Close waits for the renewal of leases and ends their contexts.
func TestCloseEndsLeases(t *testing.T) {
	t.Parallel()
	s, _ := connect(t, redisOptions(servers.StartRedis(t)))
	lease, release, held, err := NewLeases(s).Try(t.Context(), uuid.NewString())
	if err != nil || !held {
		t.Fatal(held, err)
	}
	s.Close()
	if lease.Err() == nil {
		t.Error("the lease outlives its store")
	}
	release()
	if s.tasks.Go(t.Context(), func(context.Context) {}) == nil {
		t.Error("a closed store started a goroutine")
	}
}
