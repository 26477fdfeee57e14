package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/test/testkit"
)

// allTeams selects the data of all teams.
var allTeams = page.OfAllTeams(auth.Principal{Scopes: auth.Scopes})

// testEntry returns an audit entry. IDs sort by n.
func testEntry(n int, teamID string) audit.Entry {
	return audit.Entry{
		ID: fmt.Sprintf("au_%d", n), At: testTime.Add(time.Duration(n) * time.Minute), Actor: audit.Actor{Type: audit.CLI, ID: "ada"},
		Action: audit.UpdateTeam, Target: "team:" + teamID, TeamID: teamID, Details: []byte(`{"name":{"to":"x"}}`),
	}
}

func auditIDs(t *testing.T, s *Store, q audit.Query) []string {
	t.Helper()
	entries, err := s.AuditEntries(t.Context(), q)
	testkit.Must(t, err)
	return ids(entries, func(e audit.Entry) string { return e.ID })
}

func TestAuditEntriesAreWrittenWithTheirChange(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		testkit.Must(t, s.CreateTeam(ctx, team.Team{ID: "t1", Name: "a", CreatedAt: testTime}, testEntry(1, "t1")),
			s.CreateKey(ctx, auth.Key{ID: "k1", TeamID: "t1", Scopes: auth.Scopes, CreatedAt: testTime}, testEntry(2, "t1")),
			s.RevokeKey(ctx, "k1", testTime, testEntry(3, "t1")),
			s.CreateEndpoint(ctx, team.Endpoint{ID: "e1", TeamID: "t1", CreatedAt: testTime, UpdatedAt: testTime}, testEntry(4, "t1")),
			s.ChangeSetting(ctx, "limits", []byte("{}"), testEntry(5, ""), func(context.Context) error { return nil }))
		testkit.Must(t, testkit.ErrorOf(s.UpdateTeam(ctx, "t1", func(t *team.Team) ([]audit.Entry, error) { t.Name = "b"; return []audit.Entry{testEntry(6, "t1")}, nil })))

		rejected := errors.New("rejected")
		for what, err := range map[string]error{
			"duplicate team":   s.CreateTeam(ctx, team.Team{ID: "t1", CreatedAt: testTime}, testEntry(7, "t1")),
			"unknown key":      s.RevokeKey(ctx, "unknown", testTime, testEntry(7, "t1")),
			"key without team": s.CreateKey(ctx, auth.Key{ID: "k2", TeamID: "unknown", CreatedAt: testTime}, testEntry(7, "t1")),
			"unconfirmed":      s.ChangeSetting(ctx, "limits", []byte("[]"), testEntry(7, ""), func(context.Context) error { return rejected }),
			"unknown endpoint": s.DeleteEndpoint(ctx, "unknown", nil),
			"kept endpoint":    s.DeleteEndpoint(ctx, "e1", func(team.Endpoint) ([]audit.Entry, error) { return []audit.Entry{testEntry(7, "t1")}, rejected }),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		// An entry that cannot be written undoes its change.
		if err := s.CreateTeam(ctx, team.Team{ID: "t2", CreatedAt: testTime}, testEntry(1, "t2")); err == nil {
			t.Error("an entry with a used ID was written")
		}
		testkit.WantFault(t, "team without its audit entry", testkit.ErrorOf(s.Team(ctx, "t2")), fault.NotFound)
		if value, _, _ := s.Setting(ctx, "limits"); string(value) != "{}" {
			t.Errorf("unconfirmed setting is %s, want the old one", value)
		}
		testkit.NoError(t, "kept endpoint", testkit.ErrorOf(s.Endpoint(ctx, "e1")))
		for name, tt := range map[string]struct {
			query audit.Query
			want  []string
		}{
			"all":         {audit.Query{Teams: allTeams, Query: page.All}, []string{"au_6", "au_5", "au_4", "au_3", "au_2", "au_1"}},
			"team":        {audit.Query{Teams: page.OfTeam("t1"), Query: page.Query{Limit: 2}}, []string{"au_6", "au_4"}},
			"second page": {audit.Query{Teams: page.OfTeam("t1"), Query: page.Query{After: "au_4", Limit: 2}}, []string{"au_3", "au_2"}},
			"times":       {audit.Query{Teams: allTeams, From: testTime.Add(2 * time.Minute), To: testTime.Add(4 * time.Minute), Query: page.All}, []string{"au_3", "au_2"}},
			"other team":  {audit.Query{Teams: page.OfTeam("t3"), Query: page.All}, nil},
			"no team":     {audit.Query{Query: page.All}, nil},
		} {
			testkit.Equal(t, name, auditIDs(t, s, tt.query), tt.want)
		}
		entries, err := s.AuditEntries(ctx, audit.Query{Teams: allTeams, Query: page.Query{Limit: 1}})
		testkit.Must(t, err)
		testkit.Equal(t, "entry", fmt.Sprint(entries[0]), fmt.Sprint(testEntry(6, "t1")))
	})
}

func TestOldAuditEntriesAreDeleted(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		var all []string
		start := time.Now()
		for n := range 5 {
			e := testEntry(n, "t1")
			id, err := uuid.NewV7()
			testkit.Must(t, err)
			e.ID = "au_" + id.String()
			testkit.Must(t, s.AddAuditEntries(t.Context(), e))
			all = append(all, e.ID)
		}
		slices.Reverse(all) // newest first
		for _, tt := range []struct {
			before  time.Time
			limit   int
			deleted int64
			left    []string
		}{
			{start.Add(-time.Second), 10, 0, all},
			{time.Now().Add(time.Second), 2, 2, all[:3]},
			{time.Now().Add(time.Second), 10, 3, nil},
		} {
			deleted, err := s.DeleteAuditEntries(t.Context(), tt.before, tt.limit)
			if got := auditIDs(t, s, audit.Query{Teams: allTeams, Query: page.All}); err != nil || deleted != tt.deleted || !slices.Equal(got, tt.left) {
				t.Errorf("deleted %d (error %v), left %q, want %d and %q", deleted, err, got, tt.deleted, tt.left)
			}
		}
	})
}

func TestTeamsAndKeysArePaged(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		for n, id := range []string{"tc", "ta", "tb"} { // not in order of ID
			at := testTime.Add(time.Duration(n) * time.Second)
			testkit.Must(t, s.CreateTeam(t.Context(), team.Team{ID: id, CreatedAt: at}),
				s.CreateKey(t.Context(), auth.Key{ID: "k" + id, TeamID: "tc", Scopes: auth.Scopes, CreatedAt: at}))
		}
		for after, want := range map[string][]string{"": {"tc", "ta"}, "tc": {"ta", "tb"}, "ta": {"tb"}, "tb": nil, "unknown": nil} {
			teams, err := s.Teams(t.Context(), page.Query{After: after, Limit: 2})
			if got := ids(teams, func(t team.Team) string { return t.ID }); err != nil || !slices.Equal(got, want) {
				t.Errorf("teams after %q: %v, %v, want %v", after, got, err, want)
			}
			if after != "" {
				after = "k" + after
			}
			keys, err := s.Keys(t.Context(), page.OfTeam("tc"), page.Query{After: after, Limit: 2})
			if got := ids(keys, func(k auth.Key) string { return k.ID[1:] }); err != nil || !slices.Equal(got, want) {
				t.Errorf("keys after %q: %v, %v, want %v", after, got, err, want)
			}
		}
	})
}

func TestSessionsEndWithTheirTeamOrEndpoint(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx, now := t.Context(), time.Now()
		for _, id := range []string{"t1", "t2"} {
			testkit.Must(t, s.CreateTeam(ctx, team.Team{ID: id, Name: id, CreatedAt: testTime}),
				s.CreateEndpoint(ctx, team.Endpoint{ID: "e" + id, TeamID: id, CreatedAt: testTime, UpdatedAt: testTime}))
		}
		// The states of sessions are in their names. Each team has all of them.
		for _, teamID := range []string{"t1", "t2"} {
			for n, name := range []string{"issued", "live", "ended", "late"} {
				made := session.Session{
					ID: fmt.Sprintf("ses_%d_%s_%s", n, name, teamID), TeamID: teamID, EndpointID: "e" + teamID, Mode: team.Chat,
					IssuedAt: now, RedeemBy: now.Add(time.Minute), ExpiresAt: now.Add(time.Hour),
				}
				if name == "late" {
					made.RedeemBy = now.Add(-time.Second)
				}
				testkit.Must(t, testkit.ErrorOf(s.CreateSession(ctx, made, session.IdempotencyRecord{}, now)))
				if name == "live" || name == "ended" {
					testkit.Must(t, s.RedeemSession(ctx, made.ID, now))
				}
				if name == "ended" {
					testkit.Must(t, testkit.ErrorOf(s.EndSession(ctx, made.ID, session.Ended, now)))
				}
			}
		}
		list := func(teams page.Teams, state session.State) (got []string) {
			t.Helper()
			found, err := s.Sessions(ctx, session.Query{Teams: teams, State: state, Now: now, Query: page.All})
			testkit.Must(t, err)
			return ids(found, func(s session.Session) string { return s.ID })
		}
		for state, want := range map[session.State][]string{
			"":                   {"ses_3_late_t1", "ses_2_ended_t1", "ses_1_live_t1", "ses_0_issued_t1"},
			session.Issued:       {"ses_0_issued_t1"},
			session.Connected:    {"ses_1_live_t1"},
			session.Disconnected: {"ses_1_live_t1"},
			session.Ended:        {"ses_2_ended_t1"},
			session.Expired:      {"ses_3_late_t1"},
			session.Revoked:      nil,
		} {
			testkit.Equal(t, fmt.Sprintf("state %q", state), list(page.OfTeam("t1"), state), want)
		}
		if got := list(allTeams, session.Issued); !slices.Equal(got, []string{"ses_0_issued_t2", "ses_0_issued_t1"}) {
			t.Errorf("issued in all teams: %q", got)
		}

		if got := list(page.Teams{}, session.Issued); got != nil {
			t.Errorf("issued in no team: %q", got)
		}

		_, err := s.UpdateTeam(ctx, "t1", func(t *team.Team) ([]audit.Entry, error) { t.Disabled = true; return nil, nil })
		testkit.Must(t, err)
		if got := list(page.OfTeam("t1"), session.Revoked); !slices.Equal(got, []string{"ses_3_late_t1", "ses_1_live_t1", "ses_0_issued_t1"}) || len(list(page.OfTeam("t2"), session.Revoked)) != 0 {
			t.Errorf("revoked with the team: %q, want all that had not ended", got)
		}
		// A request that was already accepted creates its session afterwards.
		_, err = s.CreateSession(ctx, session.Session{ID: "ses_4", TeamID: "t1", EndpointID: "et1", IssuedAt: now, RedeemBy: now.Add(time.Minute), ExpiresAt: now.Add(time.Hour)}, session.IdempotencyRecord{}, now)
		testkit.Must(t, err)
		testkit.WantFault(t, "redeem a session of a disabled team", s.RedeemSession(ctx, "ses_4", now), fault.NotFound)
		testkit.Must(t, s.DeleteEndpoint(ctx, "et2", func(team.Endpoint) ([]audit.Entry, error) { return nil, nil }))
		if got := list(page.OfTeam("t2"), session.Revoked); len(got) != 3 {
			t.Errorf("revoked with the endpoint: %q, want three", got)
		}
	})
}
