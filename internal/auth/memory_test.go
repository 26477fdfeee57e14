package auth

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/redact"
)

// memory keeps keys and announcements for a test, and the order in which they came.
type memory struct {
	mu      sync.Mutex
	keys    map[string]Key
	touched []map[string]time.Time
	events  []string
	lookups int
	away    error         // every call to the key store fails with it
	mute    error         // announcing fails with it
	hold    chan struct{} // when set, a lookup has read its record and waits for it
}

func newMemory() *memory { return &memory{keys: map[string]Key{}} }

func (m *memory) CreateKey(_ context.Context, k Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return m.away
	}
	m.keys[k.ID] = k
	return nil
}

func (m *memory) Key(_ context.Context, id string) (Key, error) {
	m.mu.Lock()
	k, ok := m.keys[id]
	m.lookups++
	away, hold := m.away, m.hold
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	switch {
	case away != nil:
		return Key{}, away
	case !ok:
		return Key{}, fault.New(fault.NotFound, "No such key.")
	}
	return k, nil
}

func (m *memory) Keys(_ context.Context, teamID string) ([]Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Key
	for _, k := range m.keys {
		if teamID == "" || k.TeamID == teamID {
			list = append(list, k)
		}
	}
	return list, m.away
}

func (m *memory) RevokeKey(_ context.Context, id string, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return m.away
	}
	k, ok := m.keys[id]
	if !ok {
		return fault.New(fault.NotFound, "No such key.")
	}
	if k.RevokedAt.IsZero() {
		k.RevokedAt = at
	}
	m.keys[id] = k
	m.events = append(m.events, "committed "+id)
	return nil
}

func (m *memory) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m.touched = append(m.touched, maps.Clone(used))
	return m.away
}

func (m *memory) Announce(_ context.Context, topic string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mute != nil {
		return m.mute
	}
	m.events = append(m.events, "announced "+topic)
	return nil
}

// set changes the memory while others may be using it.
func (m *memory) set(change func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *memory) lookedUp() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lookups
}

// written returns the batches of last uses.
func (m *memory) written() []map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.touched)
}

// giveKey creates a key as an administrator would and returns its record and secret.
func giveKey(t *testing.T, m *memory, now time.Time, expiresAt time.Time, scopes ...Scope) (Key, string) {
	t.Helper()
	ring := &KeyRegistry{m, m, func() time.Time { return now }}
	k, secret, err := ring.Create(t.Context(), "tm_1", "test", scopes, expiresAt)
	if err != nil {
		t.Fatalf("create a key: %v", err)
	}
	return k, secret.Reveal()
}

const testSecret = redact.Secret("0123456789abcdef0123456789abcdef")

func newTestAuthenticator(m *memory, now func() time.Time) *Authenticator {
	return NewAuthenticator(m, NewConsoleTokens(Secrets{Current: testSecret}, now), discard(), now)
}

// wantUnauthorized fails unless err is the one public answer to a bad
// credential, which must not tell one cause from another.
func wantUnauthorized(t *testing.T, err error) {
	t.Helper()
	e := fault.From(err)
	if err == nil || e.Code != fault.Unauthorized {
		t.Fatalf("got %v, want %s", err, fault.Unauthorized)
	}
	if public := fault.From(unauthorized(nil)); e.Message != public.Message || e.Details != nil {
		t.Errorf("this refusal can be told from others: %q %v", e.Message, e.Details)
	}
	if e.Cause == nil {
		t.Error("the log is not told why")
	}
}
