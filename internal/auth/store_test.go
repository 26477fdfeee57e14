package auth_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/stores"
)

// testStore is a SQLite store that records calls and can fail. It also records
// announcements.
type testStore struct {
	*sqlstore.Store
	mu          sync.Mutex
	touched     []map[string]time.Time // batches of TouchKeys
	events      []string               // "committed ID" and "announced topic"
	lookups     int                    // calls of Key
	outage      error                  // returned by every call to the store
	announceErr error                  // returned by Announce
	hold        chan struct{}          // if set, Key waits for it after reading
}

// newTestStore returns a store with the teams tm_1 and tm_2.
func newTestStore(t testing.TB) *testStore {
	t.Helper()
	db := stores.OpenSQLite(t, t.TempDir())
	for _, id := range []string{"tm_1", "tm_2"} {
		if err := db.CreateTeam(context.Background(), team.Team{ID: id, CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	return &testStore{Store: db}
}

func (s *testStore) CreateKey(ctx context.Context, k auth.Key, entries ...audit.Entry) error {
	if err := s.failure(); err != nil {
		return err
	}
	return s.Store.CreateKey(ctx, k, entries...)
}

func (s *testStore) Key(ctx context.Context, id string) (auth.Key, error) {
	k, err := s.Store.Key(ctx, id)
	s.mu.Lock()
	s.lookups++
	outage, hold := s.outage, s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if outage != nil {
		return auth.Key{}, outage
	}
	return k, err
}

func (s *testStore) RevokeKey(ctx context.Context, id string, at time.Time, entries ...audit.Entry) error {
	if err := s.failure(); err != nil {
		return err
	}
	err := s.Store.RevokeKey(ctx, id, at, entries...)
	if err == nil {
		s.set(func(s *testStore) { s.events = append(s.events, "committed "+id) })
	}
	return err
}

func (s *testStore) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.set(func(s *testStore) { s.touched = append(s.touched, maps.Clone(used)) })
	if err := s.failure(); err != nil {
		return err
	}
	return s.Store.TouchKeys(ctx, used)
}

func (s *testStore) Announce(_ context.Context, topic string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.announceErr == nil {
		s.events = append(s.events, "announced "+topic)
	}
	return s.announceErr
}

func (s *testStore) set(change func(*testStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *testStore) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage
}

func (s *testStore) lookupCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookups
}

// written returns the batches of times of last use.
func (s *testStore) written() []map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.touched)
}

// createKey creates a key and returns it with the text that a client sends.
func createKey(t testing.TB, s *testStore, createdAt, expiresAt time.Time, scopes ...auth.Scope) (auth.Key, string) {
	t.Helper()
	registry := &auth.KeyRegistry{s, s, func() time.Time { return createdAt }}
	k, secret, err := registry.Create(context.Background(), "tm_1", "test", scopes, expiresAt)
	if err != nil {
		t.Fatalf("create a key: %v", err)
	}
	return k, secret.Reveal()
}

const testSecret = redact.Secret("0123456789abcdef0123456789abcdef")

func newTestAuthenticator(s auth.KeyStore, now func() time.Time) *auth.Authenticator {
	return auth.NewAuthenticator(s, auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, 24*time.Hour, now), nil, discard(), now)
}

// wantUnauthorized fails unless err is the public error for bad credentials,
// which is the same for every cause.
func wantUnauthorized(t *testing.T, err error) {
	t.Helper()
	e := fault.From(err)
	if err == nil || e.Code != fault.Unauthorized {
		t.Fatalf("error %v, want %s", err, fault.Unauthorized)
	}
	if public := fault.From(auth.Unauthorized(nil)); e.Message != public.Message || e.Details != nil {
		t.Errorf("the error reveals its cause: %q %v", e.Message, e.Details)
	}
	if e.Cause == nil {
		t.Error("the cause is missing from the log")
	}
}
