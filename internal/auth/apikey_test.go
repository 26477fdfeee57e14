package auth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestAPIKeyReturnsItsPrincipal(t *testing.T) {
	m := newTestStore(t)
	k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps, auth.CreateCallToken)
	who, err := newTestAuthenticator(m, time.Now).APIKey(t.Context(), presented)
	testkit.Must(t, err)
	if who.TeamID != "tm_1" || who.Subject != k.ID || !slices.Equal(who.Scopes, []auth.Scope{auth.CreateCallToken, auth.ReadTeamApps}) {
		t.Errorf("principal %+v, want team tm_1, subject %s and both scopes", who, k.ID)
	}
}

func TestMalformedKeyIsRejectedWithoutLookup(t *testing.T) {
	m := newTestStore(t)
	_, good := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	id, secret, _ := strings.Cut(strings.TrimPrefix(good, "tk_"), "_")
	a := newTestAuthenticator(m, time.Now)
	for _, presented := range []string{
		"", "tk_", id + "_" + secret, "sk_" + id + "_" + secret, "TK_" + id + "_" + secret, "tk_" + id, "tk_" + id + "_", "tk__" + secret,
		good[:len(good)-1], good + "A", good + "=", "tk_" + id + "_" + strings.Repeat("+", 43), " " + good, good + " ", good + "\n", good + "\x00", "Bearer " + good, good + "," + good,
		"tk_a'b_" + secret, "tk_../x_" + secret, "tk_" + strings.Repeat("a", 65) + "_" + secret, "tk_Б_" + secret, "tk_\xff_" + secret, "tk_" + strings.Repeat("a", 1<<20) + "_" + secret,
	} {
		wantUnauthorized(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
	}
	testkit.Equal(t, "database lookups", m.lookupCount(), 0)
}

func TestInvalidKeyIsRejected(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	m := newTestStore(t)
	k, good := createKey(t, m, now, now.Add(time.Hour), auth.ReadTeamApps)
	_, other := createKey(t, m, now, time.Time{}, auth.ReadTeamApps)
	revoked := func(at time.Time) string {
		k, presented := createKey(t, m, now, time.Time{}, auth.ReadTeamApps)
		testkit.Must(t, m.RevokeKey(t.Context(), k.ID, at))
		return presented
	}
	secretOf := func(full string) string { return full[len(full)-43:] }

	for _, tt := range []struct {
		name      string
		presented string
		at        time.Time
		valid     bool
	}{
		{name: "valid", presented: good, at: now, valid: true},
		{name: "before expiry", presented: good, at: k.ExpiresAt.Add(-1), valid: true},
		{name: "at expiry", presented: good, at: k.ExpiresAt},
		{name: "long after expiry", presented: good, at: k.ExpiresAt.AddDate(1, 0, 0)},
		{name: "revoked", presented: revoked(now.Add(-time.Second)), at: now},
		{name: "revoked, by a clock that is ahead", presented: revoked(now.Add(time.Minute)), at: now},
		{name: "secret of another key", presented: "tk_" + k.ID + "_" + secretOf(other), at: now},
		{name: "last character of the secret changed", presented: good[:len(good)-1] + flip(good[len(good)-1]), at: now},
		{name: "unknown", presented: "tk_" + strings.Repeat("A", 20) + "_" + secretOf(good), at: now},
		{name: "lower-case id", presented: "tk_" + strings.ToLower(k.ID) + "_" + secretOf(good), at: now},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newTestAuthenticator(m, func() time.Time { return tt.at }).APIKey(t.Context(), tt.presented)
			if tt.valid {
				testkit.Must(t, err)
				return
			}
			wantUnauthorized(t, err)
			if strings.Contains(err.Error(), secretOf(tt.presented)) {
				t.Errorf("the error contains the secret: %v", err)
			}
		})
	}
}

// flip changes a base64url character in its highest bits.
func flip(c byte) string {
	if c == 'A' {
		return "g"
	}
	return "A"
}

func TestUnreachableStoreIsNotAnInvalidCredential(t *testing.T) {
	m := newTestStore(t)
	_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.set(func(m *testStore) { m.outage = fault.Unavailable("The database", errors.New("refused")) })
	a := newTestAuthenticator(m, time.Now)
	testkit.WantFault(t, "during the outage", testkit.ErrorOf(a.APIKey(t.Context(), presented)), fault.ServiceUnavailable)
	m.set(func(m *testStore) { m.outage = nil })
	testkit.NoError(t, "after the outage", testkit.ErrorOf(a.APIKey(t.Context(), presented)))
}

func TestAnnouncedRevocationTakesEffect(t *testing.T) {
	m := newTestStore(t)
	k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	a.Up()
	testkit.Must(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
	testkit.Must(t, m.RevokeKey(t.Context(), k.ID, time.Now()))
	if _, err := a.APIKey(t.Context(), presented); err != nil {
		t.Fatalf("the cached record was not used: %v", err)
	}
	a.Message(auth.TopicPrefix + "another")
	a.Message("team:" + k.ID)
	if n := m.lookupCount(); n != 1 {
		t.Fatalf("%d lookups before the announcement, want 1", n)
	}
	a.Message(auth.TopicPrefix + k.ID)
	wantUnauthorized(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
}

func TestKeyIsNotCachedWithoutSubscription(t *testing.T) {
	m := newTestStore(t)
	_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	authenticate := func(times, wantLookups int) {
		t.Helper()
		before := m.lookupCount()
		for range times {
			testkit.Must(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
		}
		testkit.Equal(t, fmt.Sprintf("%d requests made lookups", times), m.lookupCount()-before, wantLookups)
	}
	authenticate(3, 3) // not yet subscribed
	a.Up()
	authenticate(3, 1)
	a.Down(errors.New("subscription lost"))
	authenticate(3, 3)
	a.Up()
	authenticate(3, 1)
}

func TestCachedKeyExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		_, presented := createKey(t, m, time.Now(), time.Now().Add(5*time.Second), auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		a.Up()
		testkit.Must(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
		time.Sleep(5 * time.Second)
		wantUnauthorized(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
		testkit.Equal(t, "lookups", m.lookupCount(), 1)
	})
}

func TestMissingCredentialIsUnauthorized(t *testing.T) {
	wantUnauthorized(t, auth.ErrMissing())
}

func TestRequireChecksScope(t *testing.T) {
	who := auth.Principal{Scopes: []auth.Scope{auth.ReadTeamApps}}
	testkit.Must(t, who.Require(auth.ReadTeamApps))
	for _, p := range []auth.Principal{who, {}, {Scopes: []auth.Scope{"READ_TEAM", "read_team_usage", "*", ""}}} {
		e := fault.From(p.Require(auth.ReadTeamUsage))
		details, _ := e.Details.(map[string]auth.Scope)
		if e.Code != fault.Forbidden || details["requiredScope"] != auth.ReadTeamUsage {
			t.Errorf("scopes %q: error %v with details %v, want %s with requiredScope %s", p.Scopes, e, e.Details, fault.Forbidden, auth.ReadTeamUsage)
		}
	}
}

func TestManagerOfPlatformManagesTeams(t *testing.T) {
	platform := auth.Principal{Scopes: []auth.Scope{auth.ManagePlatform}}
	testkit.Must(t, platform.Require(auth.ManageTeam))
	if err := platform.Require(auth.RunCalls); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v for another scope, want %s", err, fault.Forbidden)
	}
	if err := (auth.Principal{Scopes: []auth.Scope{auth.RunCalls}}).Require(auth.ManageTeam); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v without the scope, want %s", err, fault.Forbidden)
	}
}

func TestRuntimeOfAllTeamsRunsCalls(t *testing.T) {
	runtime := auth.Principal{Scopes: []auth.Scope{auth.RunAllCalls}}
	testkit.Must(t, runtime.Require(auth.RunCalls))
	if err := runtime.Require(auth.ManageTeam); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v for another scope, want %s", err, fault.Forbidden)
	}
	if err := (auth.Principal{Scopes: []auth.Scope{auth.ManageTeam}}).Require(auth.RunCalls); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v without the scope, want %s", err, fault.Forbidden)
	}
}

func TestOnlyPlatformGrantsPlatformScopes(t *testing.T) {
	team, platform := auth.Principal{Scopes: []auth.Scope{auth.ManageTeam}}, auth.Principal{Scopes: []auth.Scope{auth.ManagePlatform}}
	for _, s := range auth.Scopes {
		testkit.NoError(t, fmt.Sprintf("platform grants %s", s), platform.CheckGrant([]auth.Scope{s}))
		want := s == auth.ManagePlatform || s == auth.RunAllCalls
		if err := team.CheckGrant([]auth.Scope{auth.ManageTeam, s}); fault.Is(err, fault.Forbidden) != want {
			t.Errorf("team grants %s: error %v, want one: %v", s, err, want)
		}
	}
}

// discard returns a logger without output.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestLastUseIsWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		stop := testkit.Start(t, a.Run)

		for range 1000 {
			testkit.Must(t, testkit.ErrorOf(a.APIKey(t.Context(), presented)))
			time.Sleep(time.Millisecond)
		}
		last := time.Now().Add(-time.Millisecond)
		a.RecordUse("another", last)
		synctest.Wait()
		if len(m.written()) != 0 {
			t.Fatal("written before the batch was due")
		}
		time.Sleep(auth.FlushInterval)
		synctest.Wait()
		written := m.written()
		if len(written) != 1 || len(written[0]) != 2 || !written[0]["another"].Equal(last) {
			t.Fatalf("wrote batches %v, want one with both keys", written)
		}
		for id, at := range written[0] {
			if !at.Equal(last) {
				t.Errorf("%s last used %v, want %v", id, at, last)
			}
		}
		time.Sleep(3 * auth.FlushInterval)
		synctest.Wait()
		if len(m.written()) != 1 {
			t.Error("an empty batch was written")
		}
		stop()
	})
}

func TestRejectedCredentialIsNotAUse(t *testing.T) {
	m := newTestStore(t)
	_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	wantUnauthorized(t, testkit.ErrorOf(a.APIKey(t.Context(), presented[:len(presented)-1]+flip(presented[len(presented)-1]))))
	a.Flush(t.Context())
	if len(m.touched) != 0 {
		t.Errorf("wrote last uses %v, want none", m.touched)
	}
}

// hookedStore is a store that calls onFirstWrite during its first write.
type hookedStore struct {
	*testStore
	onFirstWrite func()
}

func (s *hookedStore) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	if hook := s.onFirstWrite; hook != nil {
		s.onFirstWrite = nil
		hook()
	}
	return s.testStore.TouchKeys(ctx, used)
}

func TestUseDuringFinalWriteIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hookedStore{testStore: newTestStore(t)}
		a := auth.NewAuthenticator(store, nil, nil, discard(), time.Now)
		ctx, stop := context.WithCancel(t.Context())
		store.onFirstWrite = func() { a.RecordUse("l", time.Now()); stop() }
		a.RecordUse("k", time.Now())
		a.Run(ctx)
		all := map[string]time.Time{}
		for _, batch := range store.written() {
			maps.Copy(all, batch)
		}
		if len(all) != 2 {
			t.Errorf("wrote last uses %v, want those of k and l", all)
		}
	})
}

func TestLastUseIsRetriedAndLogged(t *testing.T) {
	m := newTestStore(t)
	m.outage = errors.New("database unavailable")
	var log bytes.Buffer
	a := auth.NewAuthenticator(m, nil, nil, slog.New(slog.NewTextHandler(&log, nil)), time.Now)
	first, later := time.Now(), time.Now().Add(time.Second)
	a.RecordUse("k", first)
	a.RecordUse("l", first)
	a.Flush(t.Context())
	testkit.Contains(t, "log", log.String(), "database unavailable")
	m.outage = nil
	a.RecordUse("l", later)
	a.Flush(t.Context())
	written := m.written()
	if last := written[len(written)-1]; !last["k"].Equal(first) || !last["l"].Equal(later) {
		t.Errorf("batches %v, want the last with k at %v and l at %v", written, first, later)
	}
}
