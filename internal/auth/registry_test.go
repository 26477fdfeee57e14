package auth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/tenant"
)

func TestCreatedKeyIsStoredAsDigest(t *testing.T) {
	m := newTestStore(t)
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	precise := now.Add(999 * time.Microsecond).In(time.FixedZone("", 3600))
	registry := &auth.KeyRegistry{m, m, func() time.Time { return precise }}
	k, secret, err := registry.Create(t.Context(), "tm_1", "console", []auth.Scope{auth.ReadTeamUsage, auth.ReadTeamApps, auth.ReadTeamUsage}, precise.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	id, raw, ok := strings.Cut(strings.TrimPrefix(secret.Reveal(), "tk_"), "_")
	if !ok || id != k.ID {
		t.Fatalf("the key contains the ID %q, want %q", id, k.ID)
	}
	if bits, err := base64.RawURLEncoding.DecodeString(raw); err != nil || len(bits) != 32 {
		t.Errorf("the secret has %d bytes (%v), want 32", len(bits), err)
	}
	if k.Digest != sha256.Sum256([]byte(raw)) {
		t.Error("Digest is not the SHA-256 of the secret")
	}
	if !slices.Equal(k.Scopes, []auth.Scope{auth.ReadTeamApps, auth.ReadTeamUsage}) || k.CreatedAt != now || k.ExpiresAt != now.Add(time.Hour) {
		t.Errorf("key %+v, want sorted scopes without duplicates, created now, expiring in an hour, in UTC and milliseconds", k)
	}
	stored, err := registry.Store.Key(t.Context(), k.ID)
	if err != nil || stored.Digest != k.Digest {
		t.Errorf("stored %+v (error %v), want the same digest", stored, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", stored, k, secret); strings.Contains(text, raw) {
		t.Error("printing the key reveals its secret")
	}
}

func TestKeysAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		id, full, digest := auth.GenerateKey()
		gotID, gotDigest, ok := auth.ParseKey(full.Reveal())
		if !ok || gotID != id || gotDigest != digest {
			t.Fatalf("ParseKey of generated key %s: ID %q, valid %v", id, gotID, ok)
		}
		if seen[id] || seen[full.Reveal()] {
			t.Fatalf("key %s was generated twice", id)
		}
		seen[id], seen[full.Reveal()] = true, true
	}
}

func TestInvalidKeyRequestReportsAllIssues(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name      string
		keyName   string
		scopes    []auth.Scope
		expiresAt time.Time
		want      []string // path and code
	}{
		{"no scope", "", nil, time.Time{}, []string{"/scopes required"}},
		{"unknown scopes", "", []auth.Scope{auth.ReadTeamApps, "ADMIN", ""}, time.Time{}, []string{"/scopes/1 invalid_value", "/scopes/2 invalid_value"}},
		{"lower-case scope", "", []auth.Scope{"read_team_apps"}, time.Time{}, []string{"/scopes/0 invalid_value"}},
		{"long name", strings.Repeat("ü", 101), []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name too_long"}},
		{"line break in the name", "a\nb", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"NUL in the name", "a\x00", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"name that is not UTF-8", "a\xff", []auth.Scope{auth.ReadTeamApps}, time.Time{}, []string{"/name forbidden_character"}},
		{"expired already", "", []auth.Scope{auth.ReadTeamApps}, now, []string{"/expiresAt invalid_value"}},
		{"all at once", "\t", []auth.Scope{"X"}, now.Add(-1), []string{"/scopes/0 invalid_value", "/name forbidden_character", "/expiresAt invalid_value"}},
		{"longest name", strings.Repeat("ü", 100), []auth.Scope{auth.ReadTeamApps}, time.Time{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newTestStore(t)
			registry := &auth.KeyRegistry{m, m, func() time.Time { return now }}
			_, secret, err := registry.Create(t.Context(), "tm_1", tt.keyName, tt.scopes, tt.expiresAt)
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e := fault.From(err)
			var got []string
			issues, _ := e.Details.([]fault.Issue)
			for _, issue := range issues {
				got = append(got, issue.Path+" "+issue.Code)
			}
			if e.Code != fault.Validation || !slices.Equal(got, tt.want) {
				t.Errorf("error %v with issues %v, want %v", err, got, tt.want)
			}
			if keys, err := m.Keys(t.Context(), tenant.Only("tm_1"), page.All); err != nil || len(keys) != 0 || secret != "" {
				t.Errorf("an invalid request created %v (%v)", keys, err)
			}
		})
	}
}

func TestUnstoredKeyIsNotReturned(t *testing.T) {
	m := newTestStore(t)
	m.outage = fault.Unavailable("The database", errors.New("refused"))
	_, secret, err := (&auth.KeyRegistry{m, m, time.Now}).Create(t.Context(), "tm_1", "", []auth.Scope{auth.ReadTeamApps}, time.Time{})
	if !fault.Is(err, fault.ServiceUnavailable) || secret != "" {
		t.Errorf("error %v with a secret: %v; want %s without one", err, secret != "", fault.ServiceUnavailable)
	}
}

func TestRevocationIsCommittedThenAnnounced(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.set(func(m *testStore) { m.events = nil })
	if err := (&auth.KeyRegistry{m, m, time.Now}).Revoke(t.Context(), k.ID); err != nil {
		t.Fatal(err)
	}
	if want := []string{"committed " + k.ID, "announced key:" + k.ID}; !slices.Equal(m.events, want) {
		t.Errorf("events %q, want %q", m.events, want)
	}
}

func TestRepeatedRevocationIsOnlyAnnounced(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	registry := &auth.KeyRegistry{m, m, time.Now}
	for range 2 {
		m.set(func(m *testStore) { m.events = nil })
		if err := registry.Revoke(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"announced key:" + k.ID}; !slices.Equal(m.events, want) {
		t.Errorf("events %q, want %q", m.events, want)
	}
}

func TestKeyStates(t *testing.T) {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		key  auth.Key
		want auth.KeyState
	}{
		{auth.Key{}, auth.Active},
		{auth.Key{ExpiresAt: now.Add(1)}, auth.Active},
		{auth.Key{ExpiresAt: now}, auth.Expired},
		{auth.Key{RevokedAt: now}, auth.Revoked},
		{auth.Key{RevokedAt: now, ExpiresAt: now}, auth.Revoked},
	} {
		if got := tt.key.View(now).State; got != tt.want {
			t.Errorf("%+v is %s, want %s", tt.key, got, tt.want)
		}
	}
}

func TestKeyIDOfWholeKey(t *testing.T) {
	id, full, _ := auth.GenerateKey()
	for _, given := range []string{id, full.Reveal()} {
		if got := auth.KeyID(given); got != id {
			t.Errorf("KeyID(%q) is %q, want %q", given, got, id)
		}
	}
}

func TestExpiryIsReportedOnce(t *testing.T) {
	now := time.Now()
	var issues fault.Issues
	issues.Check(false, "/expiresAt", fault.IssueValue, "It is not a time.")
	k := auth.Key{Scopes: []auth.Scope{auth.ReadTeamApps}, ExpiresAt: now}
	k.Check(now, &issues)
	if list, _ := fault.From(issues.Err()).Details.([]fault.Issue); len(list) != 1 {
		t.Errorf("issues %v, want one", list)
	}
}

func TestFailedRevocationIsNotAnnounced(t *testing.T) {
	for name, tt := range map[string]struct {
		id     string
		outage error
		want   fault.Code
	}{
		"unknown key":          {"unknown", nil, fault.NotFound},
		"database unavailable": {"any", fault.Unavailable("The database", errors.New("refused")), fault.ServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestStore(t)
			m.outage = tt.outage
			if err := (&auth.KeyRegistry{m, m, time.Now}).Revoke(t.Context(), tt.id); !fault.Is(err, tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if len(m.events) != 0 {
				t.Errorf("events %q, want none", m.events)
			}
		})
	}
}

func TestFailedAnnouncementNamesTheCacheTTL(t *testing.T) {
	m := newTestStore(t)
	k, _ := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	m.announceErr = errors.New("connection refused")
	err := (&auth.KeyRegistry{m, m, time.Now}).Revoke(t.Context(), k.ID)
	if err == nil {
		t.Fatal("the failed announcement is not reported")
	}
	for _, part := range []string{"is revoked", "running instances", cache.TTL.String(), "connection refused"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
	if stored, err := m.Key(t.Context(), k.ID); err != nil || stored.RevokedAt.IsZero() {
		t.Error("the key is not revoked")
	}
}

func TestDigestComparisonCoversAllBytes(t *testing.T) {
	var a [32]byte
	for i := range a {
		b := a
		b[i] ^= 1
		if auth.DigestsEqual(a, b) {
			t.Errorf("byte %d is not compared", i)
		}
	}
	if !auth.DigestsEqual(a, [32]byte{}) {
		t.Error("DigestsEqual is false for equal digests")
	}
}
