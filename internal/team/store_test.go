package team_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/stores"
	"telapi/test/testkit"
)

// testStore is a SQLite store that records calls and can fail. It also records
// announcements.
type testStore struct {
	*sqlstore.Store
	mu          sync.Mutex
	events      []string // "created ID", "committed ID" and "announced topic"
	lookups     int      // calls of Team
	outage      error    // returned by every call to the store
	announceErr error    // returned by Announce
}

func newTestStore(t *testing.T, teams ...team.Team) *testStore {
	t.Helper()
	db := stores.OpenSQLite(t, t.TempDir())
	for _, team := range teams {
		team.CreatedAt = time.Now()
		testkit.Must(t, db.CreateTeam(t.Context(), team))
	}
	return &testStore{Store: db}
}

func (s *testStore) CreateTeam(ctx context.Context, t team.Team, entries ...audit.Entry) error {
	if s.outage != nil {
		return s.outage
	}
	return s.record("created "+t.ID, s.Store.CreateTeam(ctx, t, entries...))
}

func (s *testStore) UpdateTeam(ctx context.Context, id string, change func(*team.Team) ([]audit.Entry, error)) (team.Team, error) {
	if s.outage != nil {
		return team.Team{}, s.outage
	}
	t, err := s.Store.UpdateTeam(ctx, id, change)
	return t, s.record("committed "+id, err)
}

func (s *testStore) Team(ctx context.Context, id string) (team.Team, error) {
	s.mu.Lock()
	s.lookups++
	s.mu.Unlock()
	if s.outage != nil {
		return team.Team{}, s.outage
	}
	return s.Store.Team(ctx, id)
}

func (s *testStore) Announce(_ context.Context, topic string) error {
	return s.record("announced "+topic, s.announceErr)
}

func (s *testStore) record(event string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.events = append(s.events, event)
	}
	return err
}

func (s *testStore) lookupCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookups
}

// setQuota changes a team's quota through the registry.
func setQuota(t *testing.T, m *testStore, quota *int64) (team.Team, error) {
	t.Helper()
	return (&team.Registry{m, m, time.Now}).Update(t.Context(), "tm_1", func(t *team.Team) error { t.DailyQuota = quota; return nil })
}

// rename changes a team's name through the registry.
func rename(t *testing.T, m *testStore, name string) error {
	t.Helper()
	_, err := (&team.Registry{m, m, time.Now}).Update(t.Context(), "tm_1", func(t *team.Team) error { t.Name = name; return nil })
	return err
}

// quota returns the stored quota of a team.
func (s *testStore) quota(t *testing.T, id string) int64 {
	t.Helper()
	found, err := s.Store.Team(t.Context(), id)
	testkit.Must(t, err)
	return found.Quota()
}

// setQuota changes a team without announcing it.
func (s *testStore) setQuota(t *testing.T, id string, quota int64) {
	t.Helper()
	if _, err := s.Store.UpdateTeam(t.Context(), id, func(t *team.Team) ([]audit.Entry, error) { t.DailyQuota = &quota; return nil, nil }); err != nil {
		t.Fatal(err)
	}
}
