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
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/session"
)

// newSession returns a session that can be redeemed for a minute and expires after an
// hour.
func newSession(id string) session.Session {
	return session.Session{
		ID: id, TeamID: "t1", EndpointID: "e1", Mode: endpoint.Chat, DuplicatePolicy: session.Replace, TokenID: "jti " + id,
		IssuedAt: moment1, RedeemBy: moment1.Add(time.Minute), ExpiresAt: moment1.Add(time.Hour),
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
	must(t, err)
	return found
}

func TestSessionRoundTrip(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		full, bare := newSession("full"), newSession("bare")
		full.Identity, full.Mode, full.DuplicatePolicy = &wire.Identifier{ID: "42", Name: `Zoë "Z" 🙂`}, endpoint.WebRTC, session.Reject
		full.Metadata = jsontext.Value(`{"b":1e400,"a":["\u0000",null]}`)
		for _, want := range []session.Session{full, bare} {
			addSession(t, s, want)
			if got := getSession(t, s, want.ID); !reflect.DeepEqual(got, want) {
				t.Errorf("session %+v, want %+v", got, want)
			}
		}
		if _, err := s.CreateSession(t.Context(), bare, session.IdempotencyRecord{}, time.Time{}); !fault.Is(err, fault.Validation) {
			t.Errorf("taken id: %v", err)
		}
		foreign := newSession("foreign")
		foreign.TeamID = "unknown"
		if _, err := s.CreateSession(t.Context(), foreign, session.IdempotencyRecord{}, time.Time{}); !fault.Is(err, fault.NotFound) {
			t.Errorf("session of no team: %v", err)
		}
		for _, id := range []string{"none", "", "n\x00", "n\xff"} {
			if _, err := s.Session(t.Context(), id); !fault.Is(err, fault.NotFound) {
				t.Errorf("session %q: %v", id, err)
			}
		}
	})
}

func TestSessionIsRedeemedBeforeExpiry(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		for _, id := range []string{"prompt", "late", "ended"} {
			addSession(t, s, newSession(id))
		}
		if first, err := s.EndSession(t.Context(), "ended", session.Revoked, moment1); err != nil || !first {
			t.Fatal(first, err)
		}
		first := moment1.Add(time.Minute - time.Millisecond)
		for _, tt := range []struct {
			name, id string
			at       time.Time
			redeemed bool
		}{
			{"in the last moment", "prompt", first, true},
			{"reconnect after redeemBy", "prompt", moment1.Add(30 * time.Minute), true},
			{"reconnect in the last moment", "prompt", moment1.Add(time.Hour - time.Millisecond), true},
			{"reconnect when expired", "prompt", moment1.Add(time.Hour), false},
			{"first time at redeemBy", "late", moment1.Add(time.Minute), false},
			{"ended", "ended", moment1.Add(time.Second), false},
			{"unknown", "none", moment1, false},
		} {
			err := s.RedeemSession(t.Context(), tt.id, tt.at)
			if !tt.redeemed {
				if !fault.Is(err, fault.NotFound) {
					t.Errorf("%s: %v, want NOT_FOUND", tt.name, err)
				}
				continue
			}
			must(t, err)
			if got, err := s.Session(t.Context(), tt.id); err != nil || !got.RedeemedAt.Equal(first) || !got.LastSeenAt.Equal(tt.at) {
				t.Errorf("%s: redeemed %v, seen %v, %v", tt.name, got.RedeemedAt, got.LastSeenAt, err)
			}
		}
	})
}

func TestSessionEndsOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("s1"))
		reasons := []session.State{session.Ended, session.Revoked, session.Expired}
		var mu sync.Mutex
		var winners []session.State
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				first, err := s.EndSession(t.Context(), "s1", reasons[i%3], moment1)
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
		if got := getSession(t, s, "s1"); len(winners) != 1 || got.EndedAs != winners[0] || !got.EndedAt.Equal(moment1) {
			t.Errorf("%v thought they ended it, and it ended as %s", winners, got.EndedAs)
		}
		if first, err := s.EndSession(t.Context(), "none", session.Ended, moment1); first || err != nil {
			t.Errorf("unknown session: %v, %v", first, err)
		}
	})
}

func TestSeenSessionIsNotIdle(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("s1"))
		must(t, s.RedeemSession(t.Context(), "s1", moment1))
		seen := moment1.Add(10 * time.Minute)
		must(t, s.TouchSessions(t.Context(), map[string]time.Time{"s1": seen, "none": seen}),
			s.TouchSessions(t.Context(), map[string]time.Time{"s1": moment1}), s.TouchSessions(t.Context(), nil))
		for _, unseenSince := range []time.Time{seen, seen.Add(-time.Minute)} {
			if got, err := s.ExpireSessions(t.Context(), seen, unseenSince, 10); len(got) > 0 || err != nil {
				t.Errorf("unseen since %v: %v, %v", unseenSince, got, err)
			}
		}
		addSession(t, s, newSession("new")) // was never seen, and is in time
		if got, err := s.ExpireSessions(t.Context(), moment1, seen.Add(time.Millisecond), 10); !slices.Equal(got, []string{"s1"}) || err != nil {
			t.Errorf("idle session goes on: %v, %v", got, err)
		}
	})
}

func TestConcurrentSweepersExpireSessionsOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
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
		must(t, s.RedeemSession(t.Context(), "redeemed", moment1))
		_, err := s.EndSession(t.Context(), "ended", session.Revoked, moment1)
		must(t, err)

		at := moment1.Add(time.Minute)
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
			t.Errorf("%d sessions were expired, want each of %d once: %v", len(all), due, all)
		}
		if got := getSession(t, s, "due00"); got.EndedAs != session.Expired || !got.EndedAt.Equal(at) {
			t.Errorf("swept session %+v", got)
		}
		if ids, err := s.ExpireSessions(t.Context(), moment1.Add(time.Hour-time.Millisecond), time.Time{}, 10); err != nil || len(ids) > 0 {
			t.Errorf("too early: %v, %v", ids, err)
		}
		ids, err := s.ExpireSessions(t.Context(), moment1.Add(time.Hour), moment1, 10)
		if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"later", "redeemed"}) {
			t.Errorf("when their time was over: %v, %v", ids, err)
		}
		for id, want := range map[string]session.State{"later": session.Expired, "redeemed": session.Expired, "ended": session.Revoked} {
			if got := getSession(t, s, id).EndedAs; got != want {
				t.Errorf("%s ended as %q, want %q", id, got, want)
			}
		}
	})
}

func TestSweeperDoesNotDeadlockWithTouch(t *testing.T) {
	s := open(t, engines[1].make(t)) // PostgreSQL, where writers meet at rows
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	var ids []string
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("s%02d", 29-i))
		addSession(t, s, newSession(ids[i]))
	}
	slices.Sort(ids)
	tx, err := s.write.BeginTx(t.Context(), nil)
	must(t, err)
	defer tx.Rollback()
	note := func(id string) {
		_, err := execRows(t.Context(), tx, touchSession, id, moment1.UnixMilli())
		must(t, err)
	}
	note(ids[0])
	swept := make(chan error, 1)
	go func() {
		ended, err := s.ExpireSessions(t.Context(), moment1.Add(time.Minute), time.Time{}, len(ids))
		if err == nil && !slices.Equal(ended, ids) {
			err = fmt.Errorf("ended: %v", ended)
		}
		swept <- err
	}()
	for waiting := false; !waiting; {
		must(t, s.read.QueryRowContext(t.Context(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted").Scan(&waiting))
	}
	for _, id := range ids[1:] {
		note(id)
	}
	must(t, tx.Commit(), <-swept)
}

func TestStaleAndUnsettledSessionsAreListed(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		for i, id := range []string{"c", "a", "b", "fresh", "ended", "settled", "unredeemed"} {
			addSession(t, s, newSession(id))
			if id != "unredeemed" {
				must(t, s.RedeemSession(t.Context(), id, moment1.Add(time.Duration(i)*time.Second)))
			}
		}
		for _, id := range []string{"ended", "settled"} {
			_, err := s.EndSession(t.Context(), id, session.Ended, moment1)
			must(t, err)
		}
		must(t, s.SettleSessions(t.Context(), []string{"settled", "none"}), s.SettleSessions(t.Context(), nil))
		for _, tt := range []struct {
			after string
			limit int
			want  []string
		}{{"", 2, []string{"a", "b"}}, {"b", 2, []string{"c"}}, {"c", 2, nil}} {
			got, err := s.StaleSessions(t.Context(), moment1.Add(3*time.Second), tt.after, tt.limit)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("stale after %q: %v, %v, want %v", tt.after, got, err, tt.want)
			}
		}
		for before, want := range map[time.Time][]string{moment1: nil, moment1.Add(time.Millisecond): {"ended"}} {
			got, err := s.UnsettledSessions(t.Context(), before, 10)
			id := func(s session.Session) string { return s.ID }
			if err != nil || !slices.Equal(ids(got, id), want) {
				t.Errorf("unsettled before %v: %v, %v, want %v", before, ids(got, id), err, want)
			}
		}
	})
}
