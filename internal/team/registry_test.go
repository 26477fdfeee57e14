package team

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
)

func TestTeamIsCreatedWithTheDefaultQuota(t *testing.T) {
	m := newMemory()
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	registry := &Registry{m, m, func() time.Time { return now }}
	created, err := registry.Create(t.Context(), "  Acme  ")
	if err != nil {
		t.Fatal(err)
	}
	if created.Name != "Acme" || !strings.HasPrefix(created.ID, "tm_") || created.Quota() != DefaultDailyQuota || !created.CreatedAt.Equal(now) {
		t.Errorf("got %+v", created)
	}
	shown, err := registry.Store.Team(t.Context(), created.ID)
	if err != nil || shown != created {
		t.Errorf("shown as %+v, %v", shown, err)
	}
	if list, err := registry.Store.Teams(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
}

func TestTeamNameIsChecked(t *testing.T) {
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
		{"odd but fine", "Müller & Söhne <\"'; DROP TABLE teams", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory(Team{ID: "tm_1", Name: "Old"})
			registry := &Registry{m, m, time.Now}
			_, createErr := registry.Create(t.Context(), tt.given)
			_, renameErr := registry.Rename(t.Context(), "tm_1", tt.given)
			for _, err := range []error{createErr, renameErr} {
				if tt.want == "" {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				issues, _ := fault.From(err).Details.([]fault.Issue)
				if !fault.Is(err, fault.Validation) || len(issues) != 1 || issues[0].Path != "/name" || issues[0].Code != tt.want {
					t.Errorf("got %v with %v, want %s", err, issues, tt.want)
				}
			}
			if tt.want != "" && len(m.events) != 0 {
				t.Errorf("refused, but %q", m.events)
			}
		})
	}
}

func TestQuotaIsCommittedThenAnnounced(t *testing.T) {
	m := newMemory(Team{ID: "tm_1", Name: "Acme"})
	registry := &Registry{m, m, time.Now}
	for _, quota := range []*int64{new(int64(0)), new(int64(1)), new(int64(MaxDailyQuota)), nil} {
		m.events = nil
		changed, err := registry.SetQuota(t.Context(), "tm_1", quota)
		if err != nil {
			t.Fatal(err)
		}
		want := int64(DefaultDailyQuota)
		if quota != nil {
			want = *quota
		}
		if changed.Quota() != want || m.teams["tm_1"].Quota() != want || changed.Name != "Acme" {
			t.Errorf("quota %d, stored %d, want %d", changed.Quota(), m.teams["tm_1"].Quota(), want)
		}
		if order := []string{"committed tm_1", "announced team:tm_1"}; !slices.Equal(m.events, order) {
			t.Errorf("got %q, want %q", m.events, order)
		}
	}
}

func TestQuotaOutOfBoundsChangesNothing(t *testing.T) {
	for _, quota := range []int64{-1, MaxDailyQuota + 1, -1 << 63, 1<<63 - 1} {
		m := newMemory(Team{ID: "tm_1"})
		_, err := (&Registry{m, m, time.Now}).SetQuota(t.Context(), "tm_1", &quota)
		if !fault.Is(err, fault.Validation) || len(m.events) != 0 {
			t.Errorf("%d: %v, then %q", quota, err, m.events)
		}
	}
}

func TestChangeThatFailsIsNotAnnounced(t *testing.T) {
	away := fault.Unavailable("The database", errors.New("refused"))
	for name, tt := range map[string]struct {
		store *memory
		want  fault.Code
	}{
		"unknown team": {newMemory(), fault.NotFound},
		"store away":   {&memory{away: away}, fault.ServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			registry := &Registry{tt.store, tt.store, time.Now}
			_, quotaErr := registry.SetQuota(t.Context(), "tm_1", new(int64(5)))
			_, nameErr := registry.Rename(t.Context(), "tm_1", "New")
			if !fault.Is(quotaErr, tt.want) || !fault.Is(nameErr, tt.want) {
				t.Errorf("got %v and %v, want %s", quotaErr, nameErr, tt.want)
			}
			if len(tt.store.events) != 0 {
				t.Errorf("happened all the same: %q", tt.store.events)
			}
		})
	}
	m := &memory{away: away}
	if _, err := (&Registry{m, m, time.Now}).Create(t.Context(), "Acme"); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("create: %v", err)
	}
}

func TestUnheardQuotaSaysHowLongTheOldOneHolds(t *testing.T) {
	m := newMemory(Team{ID: "tm_1"})
	m.mute = errors.New("connection refused")
	_, err := (&Registry{m, m, time.Now}).SetQuota(t.Context(), "tm_1", new(int64(5)))
	if err == nil {
		t.Fatal("nobody is told that the announcement failed")
	}
	for _, part := range []string{"is saved", "running instances", cache.TTL.String(), "connection refused"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if m.teams["tm_1"].Quota() != 5 {
		t.Error("the quota is not saved although the text says so")
	}
}
