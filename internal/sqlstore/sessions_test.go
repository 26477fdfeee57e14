package sqlstore

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/test/testkit"
)

// newSession returns a session that can be redeemed for a minute and expires after an
// hour.
func newSession(id string) session.Session {
	return session.Session{
		ID: id, TeamID: "t1", EndpointID: "e1", Mode: team.Chat, DuplicatePolicy: session.Replace, TokenID: "jti " + id,
		IssuedAt: testTime, RedeemBy: testTime.Add(time.Minute), ExpiresAt: testTime.Add(time.Hour),
	}
}

func addSession(t *testing.T, s *Store, made session.Session) {
	t.Helper()
	if created, err := s.CreateSession(t.Context(), made, session.IdempotencyRecord{}, time.Time{}); err != nil || !created {
		t.Fatalf("create %s: %v, %v", made.ID, created, err)
	}
}

func getSession(t *testing.T, s *Store, id string) session.Session {
	t.Helper()
	found, err := s.Session(t.Context(), id)
	testkit.Must(t, err)
	return found
}

func TestSessionRoundTrip(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		full, bare := newSession("full"), newSession("bare")
		full.Identity, full.Mode, full.DuplicatePolicy = &wire.Identifier{ID: "42", Name: `Zoë "Z" 🙂`}, team.WebRTC, session.Reject
		full.Metadata = jsontext.Value(`{"b":1e400,"a":["\u0000",null]}`)
		for _, want := range []session.Session{full, bare} {
			addSession(t, s, want)
			if got := getSession(t, s, want.ID); !reflect.DeepEqual(got, want) {
				t.Errorf("session %+v, want %+v", got, want)
			}
		}
		testkit.WantFault(t, "duplicate ID", testkit.ErrorOf(s.CreateSession(t.Context(), bare, session.IdempotencyRecord{}, time.Time{})), fault.Validation)
		orphan := newSession("orphan")
		orphan.TeamID = "unknown"
		testkit.WantFault(t, "session of an unknown team", testkit.ErrorOf(s.CreateSession(t.Context(), orphan, session.IdempotencyRecord{}, time.Time{})), fault.NotFound)
		for _, id := range []string{"none", "", "n\x00", "n\xff"} {
			testkit.WantFault(t, fmt.Sprintf("session %q", id), testkit.ErrorOf(s.Session(t.Context(), id)), fault.NotFound)
		}
	})
}

func TestSessionIsRedeemedBeforeExpiry(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		for _, id := range []string{"prompt", "late", "ended"} {
			addSession(t, s, newSession(id))
		}
		if first, err := s.EndSession(t.Context(), "ended", session.Revoked, testTime); err != nil || !first {
			t.Fatalf("EndSession: %v, %v; want true", first, err)
		}
		first := testTime.Add(time.Minute - time.Millisecond)
		for _, tt := range []struct {
			name, id string
			at       time.Time
			redeemed bool
		}{
			{"just before redeemBy", "prompt", first, true},
			{"reconnect after redeemBy", "prompt", testTime.Add(30 * time.Minute), true},
			{"reconnect just before expiry", "prompt", testTime.Add(time.Hour - time.Millisecond), true},
			{"reconnect after expiry", "prompt", testTime.Add(time.Hour), false},
			{"first time at redeemBy", "late", testTime.Add(time.Minute), false},
			{"ended", "ended", testTime.Add(time.Second), false},
			{"unknown", "none", testTime, false},
		} {
			err := s.RedeemSession(t.Context(), tt.id, tt.at)
			if !tt.redeemed {
				testkit.WantFault(t, tt.name, err, fault.NotFound)
				continue
			}
			testkit.Must(t, err)
			if got, err := s.Session(t.Context(), tt.id); err != nil || !got.RedeemedAt.Equal(first) || !got.LastSeenAt.Equal(tt.at) {
				t.Errorf("%s: redeemed at %v, last seen at %v, %v; want %v and %v", tt.name, got.RedeemedAt, got.LastSeenAt, err, first, tt.at)
			}
		}
	})
}

func TestSessionEndsOnce(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("s1"))
		reasons := []session.State{session.Ended, session.Revoked, session.Expired}
		var mu sync.Mutex
		var winners []session.State
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				first, err := s.EndSession(t.Context(), "s1", reasons[i%3], testTime)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if first {
					winners = append(winners, reasons[i%3])
				}
			})
		}
		wg.Wait()
		if got := getSession(t, s, "s1"); len(winners) != 1 || got.EndedAs != winners[0] || !got.EndedAt.Equal(testTime) {
			t.Errorf("%d calls ended the session (%v), and it ended as %q; want one call and its state", len(winners), winners, got.EndedAs)
		}
		if first, err := s.EndSession(t.Context(), "none", session.Ended, testTime); first || err != nil {
			t.Errorf("unknown session: %v, %v; want false", first, err)
		}
	})
}

func TestSeenSessionIsNotIdle(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("s1"))
		testkit.Must(t, s.RedeemSession(t.Context(), "s1", testTime))
		seen := testTime.Add(10 * time.Minute)
		testkit.Must(t, s.TouchSessions(t.Context(), map[string]time.Time{"s1": seen, "none": seen}),
			s.TouchSessions(t.Context(), map[string]time.Time{"s1": testTime}), s.TouchSessions(t.Context(), nil))
		for _, unseenSince := range []time.Time{seen, seen.Add(-time.Minute)} {
			if got, err := s.ExpireSessions(t.Context(), seen, unseenSince, 10); len(got) > 0 || err != nil {
				t.Errorf("unseen since %v: expired %v, %v; want none", unseenSince, got, err)
			}
		}
		addSession(t, s, newSession("new")) // not redeemed, not expired
		if got, err := s.ExpireSessions(t.Context(), testTime, seen.Add(time.Millisecond), 10); !slices.Equal(got, []string{"s1"}) || err != nil {
			t.Errorf("expired %v, %v; want the idle session s1", got, err)
		}
	})
}

func TestConcurrentSweepersExpireSessionsOnce(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		const due = 60
		for i := range due {
			addSession(t, s, newSession(fmt.Sprintf("due%02d", i)))
		}
		for _, id := range []string{"redeemed", "later", "ended"} {
			made := newSession(id)
			if id == "later" {
				made.RedeemBy = made.ExpiresAt
			}
			addSession(t, s, made)
		}
		testkit.Must(t, s.RedeemSession(t.Context(), "redeemed", testTime))
		testkit.Must(t, testkit.ErrorOf(s.EndSession(t.Context(), "ended", session.Revoked, testTime)))

		at := testTime.Add(time.Minute)
		var mu sync.Mutex
		var all []string
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					ids, err := s.ExpireSessions(t.Context(), at, time.Time{}, 7)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all = append(all, ids...)
					enough := len(all) >= due
					mu.Unlock()
					if len(ids) == 0 && enough {
						return
					}
				}
			})
		}
		wg.Wait()
		slices.Sort(all)
		if len(all) != due || len(slices.Compact(slices.Clone(all))) != due {
			t.Errorf("expired %d sessions, want each of %d once: %v", len(all), due, all)
		}
		if got := getSession(t, s, "due00"); got.EndedAs != session.Expired || !got.EndedAt.Equal(at) {
			t.Errorf("expired session %+v, want state %s at %v", got, session.Expired, at)
		}
		if ids, err := s.ExpireSessions(t.Context(), testTime.Add(time.Hour-time.Millisecond), time.Time{}, 10); err != nil || len(ids) > 0 {
			t.Errorf("just before expiry: expired %v, %v; want none", ids, err)
		}
		ids, err := s.ExpireSessions(t.Context(), testTime.Add(time.Hour), testTime, 10)
		if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"later", "redeemed"}) {
			t.Errorf("after expiry: expired %v, %v; want later and redeemed", ids, err)
		}
		for id, want := range map[string]session.State{"later": session.Expired, "redeemed": session.Expired, "ended": session.Revoked} {
			testkit.Equal(t, fmt.Sprintf("%s ended as", id), getSession(t, s, id).EndedAs, want)
		}
	})
}

// awaitLockedStatement ignores the other databases of the shared server.
func awaitLockedStatement(t *testing.T, s *Store) {
	t.Helper()
	testkit.Until(t, "a statement that waits for a locked row", func() bool {
		var waiting int
		testkit.Must(t, s.read.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting))
		return waiting > 0
	})
}

func TestSweeperDoesNotDeadlockWithTouch(t *testing.T) {
	s := open(t, engines[1].make(t)) // PostgreSQL: SQLite has one writer at a time
	testkit.Must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	var ids []string
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("s%02d", 29-i))
		addSession(t, s, newSession(ids[i]))
	}
	slices.Sort(ids)
	tx, err := s.write.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	defer tx.Rollback()
	touch := func(id string) {
		testkit.Must(t, testkit.ErrorOf(execRows(t.Context(), tx, touchSession, id, testTime.UnixMilli())))
	}
	touch(ids[0])
	swept := make(chan error, 1)
	go func() {
		ended, err := s.ExpireSessions(t.Context(), testTime.Add(time.Minute), time.Time{}, len(ids))
		if err == nil && !slices.Equal(ended, ids) {
			err = fmt.Errorf("expired %v, want %v", ended, ids)
		}
		swept <- err
	}()
	awaitLockedStatement(t, s)
	for _, id := range ids[1:] {
		touch(id)
	}
	testkit.Must(t, tx.Commit(), <-swept)
}

func TestStaleAndUnsettledSessionsAreListed(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		for i, id := range []string{"c", "a", "b", "fresh", "ended", "revoked", "settled", "unredeemed"} {
			addSession(t, s, newSession(id))
			if id != "unredeemed" {
				testkit.Must(t, s.RedeemSession(t.Context(), id, testTime.Add(time.Duration(i)*time.Second)))
			}
		}
		for id, as := range map[string]session.State{"ended": session.Ended, "revoked": session.Revoked, "settled": session.Revoked} {
			testkit.Must(t, testkit.ErrorOf(s.EndSession(t.Context(), id, as, testTime)))
		}
		testkit.Must(t, s.SettleSessions(t.Context(), []string{"settled", "none"}), s.SettleSessions(t.Context(), nil))
		for _, tt := range []struct {
			after string
			limit int
			want  []string
		}{{"", 2, []string{"a", "b"}}, {"b", 2, []string{"c"}}, {"c", 2, nil}} {
			got, err := s.StaleSessions(t.Context(), testTime.Add(3*time.Second), tt.after, tt.limit)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("stale after %q: %v, %v, want %v", tt.after, got, err, tt.want)
			}
		}
		for before, want := range map[time.Time][]string{testTime: nil, testTime.Add(time.Millisecond): {"revoked"}} {
			got, err := s.UnsettledSessions(t.Context(), before, 10)
			id := func(s session.Session) string { return s.ID }
			if err != nil || !slices.Equal(ids(got, id), want) {
				t.Errorf("unsettled before %v: %v, %v, want %v", before, ids(got, id), err, want)
			}
		}
	})
}
