package team_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

func TestNewTeamHasDefaultQuota(t *testing.T) {
	m := newTestStore(t)
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	registry := &team.Registry{m, m, func() time.Time { return now }}
	created, err := registry.Create(t.Context(), team.Team{Name: "  Acme  "})
	testkit.Must(t, err)
	if created.Name != "Acme" || !strings.HasPrefix(created.ID, "tm_") || created.Quota() != team.DefaultDailyQuota || !created.CreatedAt.Equal(now) {
		t.Errorf("created %+v, want name Acme, an ID tm_…, the default quota and the current time", created)
	}
	stored, err := registry.Store.Team(t.Context(), created.ID)
	if err != nil || stored.ID != created.ID || stored.Name != created.Name || !stored.CreatedAt.Equal(created.CreatedAt) {
		t.Errorf("stored %+v (error %v), want %+v", stored, err, created)
	}
	if list, err := registry.Store.Teams(t.Context(), page.All); err != nil || len(list) != 1 {
		t.Errorf("listed %v (error %v), want one team", list, err)
	}
}

func TestTeamNameIsValidated(t *testing.T) {
	for _, tt := range []struct{ name, given, want string }{
		{"empty", "", fault.IssueRequired},
		{"blank", " \t\n ", fault.IssueRequired},
		{"too long", strings.Repeat("ü", 101), fault.IssueTooLong},
		{"line break", "a\nb", fault.IssueForbidden},
		{"NUL", "a\x00b", fault.IssueForbidden},
		{"delete", "a\x7fb", fault.IssueForbidden},
		{"C1 control", "a\u0085b", fault.IssueForbidden},
		{"not UTF-8", "a\xffb", fault.IssueForbidden},
		{"longest", strings.Repeat("ü", 100), ""},
		{"punctuation", "Müller & Söhne <\"'; DROP TABLE teams", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newTestStore(t, team.Team{ID: "tm_1", Name: "Old"})
			registry := &team.Registry{m, m, time.Now}
			_, createErr := registry.Create(t.Context(), team.Team{Name: tt.given})
			renameErr := rename(t, m, tt.given)
			for _, err := range []error{createErr, renameErr} {
				if tt.want == "" {
					testkit.Must(t, err)
					continue
				}
				testkit.Equal(t, "issues", testkit.Issues(err), []string{"/name " + tt.want})
			}
			if tt.want != "" && len(m.events) != 0 {
				t.Errorf("events %q after a rejected name, want none", m.events)
			}
		})
	}
}

func TestQuotaIsCommittedThenAnnounced(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1", Name: "Acme"})
	for _, quota := range []*int64{new(int64(0)), new(int64(1)), new(int64(team.MaxDailyQuota)), nil} {
		m.events = nil
		changed, err := setQuota(t, m, quota)
		testkit.Must(t, err)
		want := int64(team.DefaultDailyQuota)
		if quota != nil {
			want = *quota
		}
		if changed.Quota() != want || m.quota(t, "tm_1") != want || changed.Name != "Acme" {
			t.Errorf("%s has quota %d, stored %d, want %d", changed.Name, changed.Quota(), m.quota(t, "tm_1"), want)
		}
		testkit.Equal(t, "events", m.events, []string{"committed tm_1", "announced team:tm_1"})
	}
}

func TestQuotaOutOfRangeIsRejected(t *testing.T) {
	for _, quota := range []int64{-1, team.MaxDailyQuota + 1, -1 << 63, 1<<63 - 1} {
		m := newTestStore(t, team.Team{ID: "tm_1", Name: "Acme"})
		_, err := setQuota(t, m, &quota)
		if !fault.Is(err, fault.Validation) || len(m.events) != 0 {
			t.Errorf("quota %d: error %v and events %q, want %s without events", quota, err, m.events, fault.Validation)
		}
	}
}

func TestFailedChangeIsNotAnnounced(t *testing.T) {
	outage := fault.Unavailable("The database", errors.New("refused"))
	for name, tt := range map[string]struct {
		store *testStore
		want  fault.Code
	}{
		"unknown team":         {newTestStore(t), fault.NotFound},
		"database unavailable": {&testStore{outage: outage}, fault.ServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, quotaErr := setQuota(t, tt.store, new(int64(5)))
			nameErr := rename(t, tt.store, "New")
			if !fault.Is(quotaErr, tt.want) || !fault.Is(nameErr, tt.want) {
				t.Errorf("errors %v and %v, want %s", quotaErr, nameErr, tt.want)
			}
			if len(tt.store.events) != 0 {
				t.Errorf("events %q, want none", tt.store.events)
			}
		})
	}
	m := &testStore{outage: outage}
	testkit.WantFault(t, "create", testkit.ErrorOf((&team.Registry{m, m, time.Now}).Create(t.Context(), team.Team{Name: "Acme"})), fault.ServiceUnavailable)
}

func TestFailedAnnouncementNamesTheCacheTTL(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1", Name: "Acme"})
	m.announceErr = errors.New("connection refused")
	_, err := setQuota(t, m, new(int64(5)))
	if err == nil {
		t.Fatal("the failed announcement is not reported")
	}
	testkit.Contains(t, "error", fmt.Sprint(err), "is saved", "running instances", cache.TTL.String(), "connection refused")
	if m.quota(t, "tm_1") != 5 {
		t.Error("the quota is not saved")
	}
}

func wantQuota(t *testing.T, q *team.Catalog, id string, want int64) {
	t.Helper()
	if got, err := q.Team(t.Context(), id); err != nil || got.Quota() != want {
		t.Errorf("quota of %s: %d, %v; want %d", id, got.Quota(), err, want)
	}
}

func TestQuotaForTeam(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1"}, team.Team{ID: "tm_2", DailyQuota: new(int64(7))}, team.Team{ID: "tm_3", DailyQuota: new(int64(0))})
	q := team.NewCatalog(m)
	wantQuota(t, q, "tm_1", team.DefaultDailyQuota)
	wantQuota(t, q, "tm_2", 7)
	wantQuota(t, q, "tm_3", 0)
	wantQuota(t, q, "console_only", team.DefaultDailyQuota)
}

func TestQuotaReturnsStoreError(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1"})
	q := team.NewCatalog(m)
	q.Up()
	m.outage = fault.Unavailable("The database", errors.New("refused"))
	testkit.WantFault(t, "during the outage", testkit.ErrorOf(q.Team(t.Context(), "tm_1")), fault.ServiceUnavailable)
	m.outage = nil
	wantQuota(t, q, "tm_1", team.DefaultDailyQuota)
}

func TestAnnouncedQuotaTakesEffect(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1", DailyQuota: new(int64(7))})
	q := team.NewCatalog(m)
	q.Up()
	for range 5 {
		wantQuota(t, q, "tm_1", 7)
	}
	testkit.Equal(t, "lookups for five requests", m.lookupCount(), 1)
	m.setQuota(t, "tm_1", 9)
	q.Message("team:tm_2")
	q.Message("key:tm_1")
	wantQuota(t, q, "tm_1", 7)
	q.Message("team:tm_1")
	wantQuota(t, q, "tm_1", 9)
}

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
	db := sqlite.Open(t, t.TempDir())
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
	testkit.Must(t, testkit.ErrorOf(s.Store.UpdateTeam(t.Context(), id, func(t *team.Team) ([]audit.Entry, error) { t.DailyQuota = &quota; return nil, nil })))
}
