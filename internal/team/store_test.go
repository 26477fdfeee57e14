package team_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"telapi/internal/sqlstore"
	"telapi/internal/team"
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
	db, err := sqlstore.Open(sqlstore.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, team := range teams {
		team.CreatedAt = time.Now()
		if err := db.CreateTeam(t.Context(), team); err != nil {
			t.Fatal(err)
		}
	}
	return &testStore{Store: db}
}

func (s *testStore) CreateTeam(ctx context.Context, t team.Team) error {
	if s.outage != nil {
		return s.outage
	}
	return s.record("created "+t.ID, s.Store.CreateTeam(ctx, t))
}

func (s *testStore) UpdateTeam(ctx context.Context, id string, change func(*team.Team)) (team.Team, error) {
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

// quota returns the stored quota of a team.
func (s *testStore) quota(t *testing.T, id string) int64 {
	t.Helper()
	found, err := s.Store.Team(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return found.Quota()
}

// setQuota changes a team without announcing it.
func (s *testStore) setQuota(t *testing.T, id string, quota int64) {
	t.Helper()
	if _, err := s.Store.UpdateTeam(t.Context(), id, func(t *team.Team) { t.DailyQuota = &quota }); err != nil {
		t.Fatal(err)
	}
}
