package sqlstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/session"
	"telapi/test/testkit"
)

func TestConcurrentRequestsWithOneKeyCreateOneSession(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		var mu sync.Mutex
		var created []string
		var seen []string
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				made := newSession(fmt.Sprint("s", i))
				first, err := s.CreateSession(t.Context(), made, session.IdempotencyRecord{Key: "k", Digest: "d", At: testTime}, testTime.Add(-time.Hour))
				found, digest, lookupErr := s.SessionByKey(t.Context(), "t1", "k", testTime.Add(-time.Hour))
				if err := errors.Join(err, lookupErr); err != nil || digest != "d" {
					t.Errorf("digest %q, %v; want d", digest, err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, found.ID)
				if first {
					created = append(created, made.ID)
				}
			})
		}
		wg.Wait()
		if len(created) != 1 || slices.ContainsFunc(seen, func(id string) bool { return id != created[0] }) {
			t.Errorf("created %v, and the key maps to %v; want one session", created, seen)
		}
		var rows int
		testkit.Must(t, s.read.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM sessions").Scan(&rows))
		testkit.Equal(t, "sessions stored", rows, 1)
	})
}

func TestIdempotencyKeysAreScopedAndExpire(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		newTeam(t, s, "t2")
		create := func(id, team string, at time.Time) bool {
			made := newSession(id)
			made.TeamID = team
			created, err := s.CreateSession(t.Context(), made, session.IdempotencyRecord{Key: "k", Digest: id, At: at}, at.Add(-24*time.Hour))
			testkit.Must(t, err)
			return created
		}
		day := 24 * time.Hour
		for _, tt := range []struct {
			id, team string
			at       time.Time
			created  bool
		}{
			{"first", "t1", testTime, true},
			{"repeated", "t1", testTime.Add(day - time.Millisecond), false},
			{"other team", "t2", testTime, true},
			{"next day", "t1", testTime.Add(day), true},
			{"repeated the next day", "t1", testTime.Add(day + time.Hour), false},
		} {
			testkit.Equal(t, fmt.Sprintf("%s: created", tt.id), create(tt.id, tt.team, tt.at), tt.created)
		}
		found, digest, err := s.SessionByKey(t.Context(), "t1", "k", testTime)
		if err != nil || found.ID != "next day" || digest != "next day" {
			t.Errorf("the key maps to session %q with digest %q, %v; want next day", found.ID, digest, err)
		}
		testkit.Must(t, s.PruneSessions(t.Context(), testTime.Add(time.Hour), time.Time{}, 10))
		if _, _, err := s.SessionByKey(t.Context(), "t2", "k", time.Time{}); !fault.Is(err, fault.NotFound) {
			t.Errorf("pruned key: %v, want NOT_FOUND", err)
		}
		if _, _, err := s.SessionByKey(t.Context(), "t1", "k", testTime.Add(day)); !fault.Is(err, fault.NotFound) {
			t.Errorf("expired key: %v, want NOT_FOUND", err)
		}
	})
}

func TestBrowserActionIsStoredOnce(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		batch := []session.Action{
			{SessionID: "s1", MessageID: "m2", At: testTime, JSON: []byte(`{"type":"click"}`)},
			{SessionID: "s1", MessageID: "m1", At: testTime.Add(time.Second), JSON: []byte(`{"a":"\u0000"}`)},
			{SessionID: "s1", MessageID: "m2", At: testTime, JSON: []byte(`{"type":"repeated"}`)},
			{SessionID: "s2", MessageID: "m2", At: testTime, JSON: []byte(`{}`)},
		}
		for _, actions := range [][]session.Action{batch, batch[:1], nil} {
			if excess, err := s.AddBrowserActions(t.Context(), actions); err != nil || excess != 0 {
				t.Errorf("add %d actions: %d in excess, %v", len(actions), excess, err)
			}
		}
		rows, err := list(t.Context(), s, "actions", column[string], "SELECT session_id || ' ' || message_id || ' ' || (happened_at - "+
			fmt.Sprint(testTime.UnixMilli())+") || ' ' || action FROM browser_actions ORDER BY session_id, message_id")
		want := []string{`s1 m1 1000 {"a":"\u0000"}`, `s1 m2 0 {"type":"click"}`, `s2 m2 0 {}`}
		if err != nil || !slices.Equal(rows, want) {
			t.Errorf("stored %q, %v, want %q", rows, err, want)
		}
		testkit.WantFault(t, "invalid text", testkit.ErrorOf(s.AddBrowserActions(t.Context(), []session.Action{{SessionID: "s", MessageID: "m", JSON: []byte("\x00")}})), fault.Validation)
	})
}

func TestBrowserActionsOfSessionAreLimited(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		for name, c := range map[string]struct{ size, fit int }{
			"rows":  {2, session.MaxActions},
			"bytes": {session.MaxActionBytes, session.MaxActionsBytes / session.MaxActionBytes},
		} {
			actions := make([]session.Action, c.fit+2)
			for i := range actions {
				actions[i] = session.Action{SessionID: name, MessageID: fmt.Sprintf("%06d", i), At: testTime, JSON: []byte("{}" + strings.Repeat(" ", c.size-2))}
			}
			other := session.Action{SessionID: name + ", other", MessageID: "m", At: testTime, JSON: []byte("{}")}
			for _, step := range []struct {
				actions []session.Action
				excess  int
			}{
				{actions[:c.fit-1], 0},
				{actions[c.fit-2:], 2}, // a duplicate, the last that fits, and two more
				{[]session.Action{actions[0], actions[c.fit+1], other}, 1},
			} {
				for batch := range slices.Chunk(step.actions, 100) {
					excess, err := s.AddBrowserActions(t.Context(), batch)
					if testkit.Must(t, err); excess != step.excess {
						t.Errorf("%s: %d of %d actions are in excess, want %d", name, excess, len(batch), step.excess)
					}
				}
			}
			rows, err := list(t.Context(), s, "actions", column[int], "SELECT count(*) FROM browser_actions WHERE session_id = $1", name)
			if testkit.Must(t, err); rows[0] != c.fit {
				t.Errorf("%s: %d actions are stored, want %d", name, rows[0], c.fit)
			}
		}
	})
}

func TestOldSessionsArePruned(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		for i, id := range []string{"oldest", "older", "old", "unsettled", "recent", "live"} {
			addSession(t, s, newSession(id))
			testkit.Must(t, testkit.ErrorOf(s.AddBrowserActions(t.Context(), []session.Action{{SessionID: id, MessageID: "m", At: testTime, JSON: []byte(`{}`)}})))
			ended := testTime.Add(time.Duration(i) * time.Minute)
			if id == "recent" {
				ended = testTime.Add(time.Hour)
			}
			if id != "live" {
				testkit.Must(t, testkit.ErrorOf(s.EndSession(t.Context(), id, session.Revoked, ended)))
			}
		}
		testkit.Must(t, s.SettleSessions(t.Context(), []string{"oldest", "older", "old", "recent"}))
		for _, want := range []string{"live old recent unsettled", "live recent unsettled", "live recent unsettled"} {
			testkit.Must(t, s.PruneSessions(t.Context(), time.Time{}, testTime.Add(time.Hour), 2))
			for _, query := range []string{"SELECT id FROM sessions ORDER BY id", "SELECT session_id FROM browser_actions ORDER BY session_id"} {
				left, err := list(t.Context(), s, "remaining rows", column[string], query)
				if testkit.Must(t, err); strings.Join(left, " ") != want {
					t.Errorf("%s: %q, want %q", query, left, want)
				}
			}
		}
	})
}
