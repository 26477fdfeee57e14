package auth_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/redact"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

func TestCreatedKeyIsStoredAsDigest(t *testing.T) {
	m := newTestStore(t)
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	precise := now.Add(999 * time.Microsecond).In(time.FixedZone("", 3600))
	registry := &auth.KeyRegistry{m, m, func() time.Time { return precise }}
	k, secret, err := registry.Create(t.Context(), auth.Key{TeamID: "tm_1", Name: "console", Scopes: []auth.Scope{auth.ReadTeamUsage, auth.ReadTeamApps, auth.ReadTeamUsage}, ExpiresAt: precise.Add(time.Hour)})
	testkit.Must(t, err)
	id, raw, ok := strings.Cut(strings.TrimPrefix(secret.Reveal(), "tk_"), "_")
	if !ok || id != k.ID {
		t.Fatalf("the key contains the ID %q, want %q", id, k.ID)
	}
	if bits, err := base64.RawURLEncoding.DecodeString(raw); err != nil || len(bits) != 32 {
		t.Errorf("the secret has %d bytes (%v), want 32", len(bits), err)
	}
	if k.Digest != sha256.Sum256([]byte(raw)) {
		t.Error("Digest is not the SHA-256 of the secret")
	}
	if !slices.Equal(k.Scopes, []auth.Scope{auth.ReadTeamApps, auth.ReadTeamUsage}) || k.CreatedAt != now || k.ExpiresAt != now.Add(time.Hour) {
		t.Errorf("key %+v, want sorted scopes without duplicates, created now, expiring in an hour, in UTC and milliseconds", k)
	}
	stored, err := registry.Store.Key(t.Context(), k.ID)
	if err != nil || stored.Digest != k.Digest {
		t.Errorf("stored %+v (error %v), want the same digest", stored, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", stored, k, secret); strings.Contains(text, raw) {
		t.Error("printing the key reveals its secret")
	}
}

func TestKeysAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		id, full, digest := auth.GenerateKey()
		gotID, gotDigest, ok := auth.ParseKey(full.Reveal())
		if !ok || gotID != id || gotDigest != digest {
			t.Fatalf("ParseKey of generated key %s: ID %q, valid %v", id, gotID, ok)
		}
		if seen[id] || seen[full.Reveal()] {
			t.Fatalf("key %s was generated twice", id)
		}
		seen[id], seen[full.Reveal()] = true, true
	}
}

func TestInvalidKeyRequestReportsAllIssues(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name      string
		keyName   string
		scopes    []auth.Scope
		expiresAt time.Time
		want      []string // path and code
	}{
		{"no scope", "", nil, time.Time{}, []string{"/scopes required"}},
		{"unknown scopes", "", []auth.Scope{auth.ReadTeamApps, "ADMIN", ""}, time.Time{}, []string{"/scopes/1 invalid_value", "/scopes/2 invalid_value"}},
		{"lower-case scope", "", []auth.Scope{"read_team_apps"}, time.Time{}, []string{"/scopes/0 invalid_value"}},
		{"long name", strings.Repeat("ü", 101), []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name too_long"}},
		{"line break in the name", "a\nb", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"NUL in the name", "a\x00", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"name that is not UTF-8", "a\xff", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"expired already", "", []auth.Scope{auth.ReadTeamApps}, now, []string{"/expiresAt invalid_value"}},
		{"all at once", "\t", []auth.Scope{"X"}, now.Add(-1), []string{"/scopes/0 invalid_value", "/name forbidden_character", "/expiresAt invalid_value"}},
		{"longest name", strings.Repeat("ü", 100), []auth.Scope{auth.ReadTeamApps}, time.Time{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newTestStore(t)
			registry := &auth.KeyRegistry{m, m, func() time.Time { return now }}
			_, secret, err := registry.Create(t.Context(), auth.Key{TeamID: "tm_1", Name: tt.keyName, Scopes: tt.scopes, ExpiresAt: tt.expiresAt})
			if tt.want == nil {
				testkit.Must(t, err)
				return
			}
			testkit.Equal(t, "issues", testkit.Issues(err), tt.want)
			if keys, err := m.Keys(t.Context(), page.OfTeam("tm_1"), page.All); err != nil || len(keys) != 0 || secret != "" {
				t.Errorf("an invalid request created %v (%v)", keys, err)
			}
		})
	}
}

func TestUnstoredKeyIsNotReturned(t *testing.T) {
	m := newTestStore(t)
	m.outage = fault.Unavailable("The database", errors.New("refused"))
	_, secret, err := (&auth.KeyRegistry{m, m, time.Now}).Create(t.Context(), auth.Key{TeamID: "tm_1", Scopes: []auth.Scope{auth.ReadTeamApps}})
	if !fault.Is(err, fault.ServiceUnavailable) || secret != "" {
		t.Errorf("error %v with a secret: %v; want %s without one", err, secret != "", fault.ServiceUnavailable)
	}
}

func TestRevocationIsCommittedThenAnnounced(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.set(func(m *testStore) { m.events = nil })
	testkit.Must(t, (&auth.KeyRegistry{m, m, time.Now}).Revoke(t.Context(), k.ID))
	testkit.Equal(t, "events", m.events, []string{"committed " + k.ID, "announced key:" + k.ID})
}

func TestRepeatedRevocationIsOnlyAnnounced(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	registry := &auth.KeyRegistry{m, m, time.Now}
	for range 2 {
		m.set(func(m *testStore) { m.events = nil })
		testkit.Must(t, registry.Revoke(t.Context(), k.ID))
	}
	testkit.Equal(t, "events", m.events, []string{"announced key:" + k.ID})
}

// unreadableStore is a store whose keys cannot be read.
type unreadableStore struct {
	*testStore
	err error
}

func (s unreadableStore) Key(context.Context, string) (auth.Key, error) { return auth.Key{}, s.err }

func TestUnreadKeyIsNotRevoked(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.set(func(m *testStore) { m.events = nil })
	broken := errors.New("timeout")
	if err := (&auth.KeyRegistry{unreadableStore{m, broken}, m, time.Now}).Revoke(t.Context(), k.ID); !errors.Is(err, broken) || len(m.events) != 0 {
		t.Errorf("error %v and events %q, want %v and none: the audit entry needs the key's team", err, m.events, broken)
	}
}

func TestKeyStates(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		key  auth.Key
		want auth.KeyState
	}{
		{auth.Key{}, auth.Active},
		{auth.Key{ExpiresAt: now.Add(1)}, auth.Active},
		{auth.Key{ExpiresAt: now}, auth.Expired},
		{auth.Key{RevokedAt: now}, auth.Revoked},
		{auth.Key{RevokedAt: now, ExpiresAt: now}, auth.Revoked},
	} {
		testkit.Equal(t, fmt.Sprintf("%+v", tt.key), tt.key.View(now).State, tt.want)
	}
}

func TestKeyIDOfWholeKey(t *testing.T) {
	id, full, _ := auth.GenerateKey()
	for _, given := range []string{id, full.Reveal()} {
		testkit.Equal(t, fmt.Sprintf("KeyID(%q)", given), auth.KeyID(given), id)
	}
}

func TestExpiryIsReportedOnce(t *testing.T) {
	now := time.Now()
	var issues fault.Issues
	issues.Check(false, "/expiresAt", fault.IssueValue, "It is not a time.")
	k := auth.Key{Scopes: []auth.Scope{auth.ReadTeamApps}, ExpiresAt: now}
	k.Check(now, &issues)
	testkit.Equal(t, "issues", testkit.IssuePaths(issues.Err()), []string{"/expiresAt"})
}

func TestFailedAnnouncementNamesTheCacheTTL(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.announceErr = errors.New("connection refused")
	err := (&auth.KeyRegistry{m, m, time.Now}).Revoke(t.Context(), k.ID)
	if err == nil {
		t.Fatal("the failed announcement is not reported")
	}
	testkit.Contains(t, "error", fmt.Sprint(err), "is revoked", "running instances", cache.TTL.String(), "connection refused")
	if stored, err := m.Key(t.Context(), k.ID); err != nil || stored.RevokedAt.IsZero() {
		t.Error("the key is not revoked")
	}
}

func TestDigestComparisonCoversAllBytes(t *testing.T) {
	var a [32]byte
	for i := range a {
		b := a
		b[i] ^= 1
		if auth.DigestsEqual(a, b) {
			t.Errorf("byte %d is not compared", i)
		}
	}
	if !auth.DigestsEqual(a, [32]byte{}) {
		t.Error("DigestsEqual is false for equal digests")
	}
}

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
}

// newTestStore returns a store with the teams tm_1 and tm_2.
func newTestStore(t testing.TB) *testStore {
	t.Helper()
	db := sqlite.Open(t, t.TempDir())
	for _, id := range []string{"tm_1", "tm_2"} {
		testkit.Must(t, db.CreateTeam(context.Background(), team.Team{ID: id, CreatedAt: time.Now()}))
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
	outage := s.outage
	s.mu.Unlock()
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
	k, secret, err := registry.Create(context.Background(), auth.Key{TeamID: "tm_1", Name: "test", Scopes: scopes, ExpiresAt: expiresAt})
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
