package auth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/fault"
)

func TestAPIKeyReturnsItsPrincipal(t *testing.T) {
	m := newTestStore(t)
	k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps, auth.CreateCallToken)
	who, err := newTestAuthenticator(m, time.Now).APIKey(t.Context(), presented)
	if err != nil {
		t.Fatal(err)
	}
	if who.TeamID != "tm_1" || who.Subject != k.ID || !slices.Equal(who.Scopes, []auth.Scope{auth.CreateCallToken, auth.ReadTeamApps}) {
		t.Errorf("principal %+v, want team tm_1, subject %s and both scopes", who, k.ID)
	}
}

func TestMalformedKeyIsRejectedWithoutLookup(t *testing.T) {
	m := newTestStore(t)
	_, good := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	id, secret, _ := strings.Cut(strings.TrimPrefix(good, "tk_"), "_")
	a := newTestAuthenticator(m, time.Now)
	for name, presented := range map[string]string{
		"empty":             "",
		"only a prefix":     "tk_",
		"no prefix":         id + "_" + secret,
		"another prefix":    "sk_" + id + "_" + secret,
		"upper-case prefix": "TK_" + id + "_" + secret,
		"no secret":         "tk_" + id,
		"empty secret":      "tk_" + id + "_",
		"no id":             "tk__" + secret,
		"truncated secret":  good[:len(good)-1],
		"secret too long":   good + "A",
		"padded secret":     good + "=",
		"plain base64":      "tk_" + id + "_" + strings.Repeat("+", 43),
		"space before":      " " + good,
		"space after":       good + " ",
		"line break after":  good + "\n",
		"NUL after":         good + "\x00",
		"with Bearer":       "Bearer " + good,
		"two keys":          good + "," + good,
		"id with a quote":   "tk_a'b_" + secret,
		"id with a path":    "tk_../x_" + secret,
		"id too long":       "tk_" + strings.Repeat("a", 65) + "_" + secret,
		"Cyrillic id":       "tk_Б_" + secret,
		"not UTF-8":         "tk_\xff_" + secret,
		"huge":              "tk_" + strings.Repeat("a", 1<<20) + "_" + secret,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.APIKey(t.Context(), presented)
			wantUnauthorized(t, err)
		})
	}
	if n := m.lookupCount(); n != 0 {
		t.Errorf("%d database lookups, want 0", n)
	}
}

func TestInvalidKeyIsRejected(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	m := newTestStore(t)
	k, good := createKey(t, m, now, now.Add(time.Hour), auth.ReadTeamApps)
	_, other := createKey(t, m, now, time.Time{}, auth.ReadTeamApps)
	revoked := func(at time.Time) string {
		k, presented := createKey(t, m, now, time.Time{}, auth.ReadTeamApps)
		if err := m.RevokeKey(t.Context(), k.ID, at); err != nil {
			t.Fatal(err)
		}
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
				if err != nil {
					t.Fatal(err)
				}
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
	if _, err := a.APIKey(t.Context(), presented); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("during the outage: error %v, want %s", err, fault.ServiceUnavailable)
	}
	m.set(func(m *testStore) { m.outage = nil })
	if _, err := a.APIKey(t.Context(), presented); err != nil {
		t.Errorf("after the outage: %v", err)
	}
}

func TestAnnouncedRevocationTakesEffect(t *testing.T) {
	m := newTestStore(t)
	k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	a.Up()
	if _, err := a.APIKey(t.Context(), presented); err != nil {
		t.Fatal(err)
	}
	if err := m.RevokeKey(t.Context(), k.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.APIKey(t.Context(), presented); err != nil {
		t.Fatalf("the cached record was not used: %v", err)
	}
	a.Message(auth.TopicPrefix + "another")
	a.Message("team:" + k.ID)
	if n := m.lookupCount(); n != 1 {
		t.Fatalf("%d lookups before the announcement, want 1", n)
	}
	a.Message(auth.TopicPrefix + k.ID)
	_, err := a.APIKey(t.Context(), presented)
	wantUnauthorized(t, err)
}

func TestRevocationDuringLookupTakesEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		a.Up()

		hold := make(chan struct{})
		m.set(func(m *testStore) { m.hold = hold })
		first := make(chan error)
		go func() {
			_, err := a.APIKey(t.Context(), presented)
			first <- err
		}()
		synctest.Wait() // the old record is read, and not yet cached

		if err := m.RevokeKey(t.Context(), k.ID, time.Now()); err != nil {
			t.Fatal(err)
		}
		a.Message(auth.TopicPrefix + k.ID)
		m.set(func(m *testStore) { m.hold = nil })
		close(hold)
		if err := <-first; err != nil {
			t.Fatalf("request that started before the revocation: %v", err)
		}
		_, err := a.APIKey(t.Context(), presented)
		wantUnauthorized(t, err)
	})
}

func TestKeyIsNotCachedWithoutSubscription(t *testing.T) {
	m := newTestStore(t)
	_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	authenticate := func(times, wantLookups int) {
		t.Helper()
		before := m.lookupCount()
		for range times {
			if _, err := a.APIKey(t.Context(), presented); err != nil {
				t.Fatal(err)
			}
		}
		if n := m.lookupCount() - before; n != wantLookups {
			t.Errorf("%d requests made %d lookups, want %d", times, n, wantLookups)
		}
	}
	authenticate(3, 3) // not yet subscribed
	a.Up()
	authenticate(3, 1)
	a.Down(errors.New("subscription lost"))
	authenticate(3, 3)
	a.Up()
	authenticate(3, 1)
}

func TestKeyIsReadAgainAfterTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		k, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		a.Up()
		if _, err := a.APIKey(t.Context(), presented); err != nil {
			t.Fatal(err)
		}
		// Revoked without an announcement.
		if err := m.RevokeKey(t.Context(), k.ID, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(cache.TTL)
		_, err := a.APIKey(t.Context(), presented)
		wantUnauthorized(t, err)
	})
}

func TestCachedKeyExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		_, presented := createKey(t, m, time.Now(), time.Now().Add(5*time.Second), auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		a.Up()
		if _, err := a.APIKey(t.Context(), presented); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		_, err := a.APIKey(t.Context(), presented)
		wantUnauthorized(t, err)
		if n := m.lookupCount(); n != 1 {
			t.Errorf("%d lookups, want 1: the key was not cached", n)
		}
	})
}

func TestMissingCredentialIsUnauthorized(t *testing.T) {
	wantUnauthorized(t, newTestAuthenticator(nil, time.Now).Missing())
}

func TestRequireChecksScope(t *testing.T) {
	who := auth.Principal{Scopes: []auth.Scope{auth.ReadTeamApps}}
	if err := who.Require(auth.ReadTeamApps); err != nil {
		t.Error(err)
	}
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
	if err := platform.Require(auth.ManageTeam); err != nil {
		t.Error(err)
	}
	if err := platform.Require(auth.RunCalls); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v for another scope, want %s", err, fault.Forbidden)
	}
	if err := (auth.Principal{Scopes: []auth.Scope{auth.RunCalls}}).Require(auth.ManageTeam); !fault.Is(err, fault.Forbidden) {
		t.Errorf("error %v without the scope, want %s", err, fault.Forbidden)
	}
}

func TestOnlyPlatformGrantsPlatformScopes(t *testing.T) {
	team, platform := auth.Principal{Scopes: []auth.Scope{auth.ManageTeam}}, auth.Principal{Scopes: []auth.Scope{auth.ManagePlatform}}
	for _, s := range auth.Scopes {
		if err := platform.CheckGrant([]auth.Scope{s}); err != nil {
			t.Errorf("platform grants %s: %v", s, err)
		}
		want := s == auth.ManagePlatform || s == auth.RunAllCalls
		if err := team.CheckGrant([]auth.Scope{auth.ManageTeam, s}); fault.Is(err, fault.Forbidden) != want {
			t.Errorf("team grants %s: error %v, want one: %v", s, err, want)
		}
	}
}
