package team_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/team"
)

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

func TestQuotaIsNotCachedWithoutSubscription(t *testing.T) {
	m := newTestStore(t, team.Team{ID: "tm_1", DailyQuota: new(int64(7))})
	q := team.NewCatalog(m)
	wantQuota(t, q, "tm_1", 7)
	m.setQuota(t, "tm_1", 8)
	wantQuota(t, q, "tm_1", 8)
	q.Up()
	wantQuota(t, q, "tm_1", 8)
	m.setQuota(t, "tm_1", 9)
	q.Down(errors.New("subscription lost"))
	wantQuota(t, q, "tm_1", 9)
}

func TestUnannouncedQuotaTakesEffectAfterTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t, team.Team{ID: "tm_1", DailyQuota: new(int64(7))})
		q := team.NewCatalog(m)
		q.Up()
		wantQuota(t, q, "tm_1", 7)
		m.setQuota(t, "tm_1", 9)
		time.Sleep(cache.TTL)
		wantQuota(t, q, "tm_1", 9)
	})
}
