package team_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
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
					if err != nil {
						t.Error(err)
					}
					continue
				}
				issues, _ := fault.From(err).Details.([]fault.Issue)
				if !fault.Is(err, fault.Validation) || len(issues) != 1 || issues[0].Path != "/name" || issues[0].Code != tt.want {
					t.Errorf("error %v with issues %v, want one of %s at /name", err, issues, tt.want)
				}
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
		if events := []string{"committed tm_1", "announced team:tm_1"}; !slices.Equal(m.events, events) {
			t.Errorf("events %q, want %q", m.events, events)
		}
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
	if _, err := (&team.Registry{m, m, time.Now}).Create(t.Context(), team.Team{Name: "Acme"}); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("create: error %v, want %s", err, fault.ServiceUnavailable)
	}
}

func TestFailedAnnouncementNamesTheCacheTTL(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1", Name: "Acme"})
	m.announceErr = errors.New("connection refused")
	_, err := setQuota(t, m, new(int64(5)))
	if err == nil {
		t.Fatal("the failed announcement is not reported")
	}
	for _, part := range []string{"is saved", "running instances", cache.TTL.String(), "connection refused"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
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
	if _, err := q.Team(t.Context(), "tm_1"); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("during the outage: error %v, want %s", err, fault.ServiceUnavailable)
	}
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
	if n := m.lookupCount(); n != 1 {
		t.Errorf("%d lookups for five requests, want 1", n)
	}
	m.setQuota(t, "tm_1", 9)
	q.Message("team:tm_2")
	q.Message("key:tm_1")
	wantQuota(t, q, "tm_1", 7)
	q.Message("team:tm_1")
	wantQuota(t, q, "tm_1", 9)
}
