package speechtest

import (
	"context"
	"sync"
	"testing"

	"telapi/internal/speech"
)

// Leases is a speech.Leases in memory.
type Leases struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when released
}

var _ speech.Leases = (*Leases)(nil)

// NewLeases returns leases that are all free.
func NewLeases() *Leases { return &Leases{held: map[string]chan struct{}{}} }

// take returns the release function, or the channel that is closed when the
// lease becomes free.
func (l *Leases) take(name string) (release func(), busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, ok := l.held[name]; ok {
		return nil, held
	}
	released := make(chan struct{})
	l.held[name] = released
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, name)
		close(released)
	}), nil
}

// Acquire implements speech.Leases.
func (l *Leases) Acquire(ctx context.Context, name string) (release func(), waited bool, err error) {
	for {
		release, busy := l.take(name)
		if release != nil {
			return release, waited, nil
		}
		waited = true
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, waited, ctx.Err()
		}
	}
}

// Try implements speech.Leases.
func (l *Leases) Try(ctx context.Context, name string) (leaseCtx context.Context, release func(), held bool, err error) {
	releaseLease, busy := l.take(name)
	if busy != nil {
		return nil, nil, false, nil
	}
	leaseCtx, cancel := context.WithCancel(ctx)
	return leaseCtx, func() { cancel(); releaseLease() }, true, nil
}

// TestLeases checks the leases of two instances against the contract of
// speech.Leases.
func TestLeases(t *testing.T, a, b speech.Leases, name string) {
	release, waited, err := a.Acquire(t.Context(), name)
	if err != nil || waited {
		t.Fatalf("Acquire of a free lease: waited %v, %v; want no wait", waited, err)
	}
	if _, _, held, err := b.Try(t.Context(), name); err != nil || held {
		t.Errorf("Try of a held lease: held %v, %v; want false", held, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Acquire(cancelled, name); err == nil {
		t.Error("Acquire with a cancelled context got a held lease")
	}
	leaseCtx, releaseOther, held, err := b.Try(t.Context(), name+"-other")
	if err != nil || !held {
		t.Fatalf("Try of another lease: held %v, %v; want true", held, err)
	}
	if err := leaseCtx.Err(); err != nil {
		t.Errorf("context of a held lease has error %v, want none", err)
	}
	releaseOther()
	<-leaseCtx.Done()

	acquired := make(chan error, 1)
	go func() {
		release, _, err := b.Acquire(t.Context(), name)
		if err == nil {
			release()
		}
		acquired <- err
	}()
	release()
	if err := <-acquired; err != nil {
		t.Errorf("Acquire of a released lease returned %v, want nil", err)
	}
	_, release, held, err = a.Try(t.Context(), name)
	if err != nil || !held {
		t.Fatalf("Try of a released lease: held %v, %v; want true", held, err)
	}
	release()
}
