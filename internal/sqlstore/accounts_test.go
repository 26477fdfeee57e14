package sqlstore

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestTeamRoundTrip(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		quota := int64(0)
		older := team.Team{ID: "b", Name: `Müller & "Söhne" 🙂`, CreatedAt: testTime, DailyQuota: &quota}
		newer := team.Team{ID: "a", Name: "newer", CreatedAt: testTime.Add(time.Millisecond)}
		testkit.Must(t, s.CreateTeam(ctx, newer), s.CreateTeam(ctx, older))

		got, err := s.Teams(ctx, page.All)
		if err != nil || !reflect.DeepEqual(got, []team.Team{older, newer}) {
			t.Fatalf("teams %+v, %v, want oldest first", got, err)
		}

		quota = 1 << 40
		older.Name, newer.DailyQuota, older.DailyQuota = "renamed", &quota, nil
		for _, want := range []team.Team{older, newer} {
			got, err := s.UpdateTeam(ctx, want.ID, func(t *team.Team) ([]audit.Entry, error) { *t = want; return nil, nil })
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("updated to %+v, %v, want %+v", got, err, want)
			}
		}
		for _, want := range []team.Team{older, newer} {
			if got, err := s.Team(ctx, want.ID); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("team %+v, %v, want %+v", got, err, want)
			}
		}
	})
}

func TestInvalidDigestErrorHidesValue(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))
		for _, damaged := range []string{"", "abab", "not hex", strings.Repeat("ab", 33)} {
			testkit.Must(t, testkit.ErrorOf(execRows(t.Context(), s.write, `UPDATE api_keys SET digest = $1`, damaged)))
			if _, err := s.Key(t.Context(), "k1"); err == nil || damaged != "" && strings.Contains(err.Error(), damaged) {
				t.Errorf("digest %q: error %v, want one without the value", damaged, err)
			}
		}
	})
}

// insertMany runs an INSERT ... SELECT with the numbers from 1 to n as column i.
func insertMany(t *testing.T, s *Store, n int, insert string) {
	t.Helper()
	_, err := s.write.ExecContext(t.Context(), fmt.Sprintf(`WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < %d) %s FROM numbers`, n, insert))
	testkit.Must(t, err)
}

func TestTeamHasBoundedKeysAndEndpoints(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		newTeam(t, s, "t2")
		insertMany(t, s, auth.MaxKeys-1, `INSERT INTO api_keys (id, team_id, name, digest, scopes, created_at) SELECT 'k' || i, 't1', '', '', '[]', i`)
		insertMany(t, s, auth.MaxKeys+3, `INSERT INTO api_keys (id, team_id, name, digest, scopes, created_at, revoked_at) SELECT 'r' || i, 't1', '', '', '[]', i, i`)
		insertMany(t, s, team.MaxEndpoints-1, `INSERT INTO endpoints (id, team_id, name, enabled, modes, origins, profile, created_at, updated_at) SELECT 'e' || i, 't1', '', true, '[]', '[]', '{}', i, i`)
		for kind, create := range map[string]func(id, teamID string) error{
			"keys": func(id, teamID string) error {
				return s.CreateKey(t.Context(), auth.Key{ID: id, TeamID: teamID, CreatedAt: testTime})
			},
			"endpoints": func(id, teamID string) error {
				return s.CreateEndpoint(t.Context(), team.Endpoint{ID: id, TeamID: teamID, CreatedAt: testTime, UpdatedAt: testTime})
			},
		} {
			results := make(chan error)
			for i := range 4 {
				go func() { results <- create(fmt.Sprint("new", i), "t1") }()
			}
			created := 0
			for range 4 {
				switch err := <-results; {
				case err == nil:
					created++
				case !fault.Is(err, fault.Validation) || !strings.Contains(err.Error(), "at most 1000"):
					t.Errorf("%s: %v, want VALIDATION_ERROR with the maximum", kind, err)
				}
			}
			if err := create("other", "t2"); created != 1 || err != nil {
				t.Errorf("%d of 4 %s were created, another team's: %v; want 1, no error", created, kind, err)
			}
		}
		for id, kept := range map[string]bool{"r3": false, "r4": true} {
			if _, err := s.Key(t.Context(), id); fault.Is(err, fault.NotFound) == kept {
				t.Errorf("revoked key %s: %v, want kept: %v", id, err, kept)
			}
		}
		testkit.Must(t, s.RevokeKey(t.Context(), "k1", testTime), s.CreateKey(t.Context(), auth.Key{ID: "after", TeamID: "t1", CreatedAt: testTime}))
	})
}

func TestKeyRoundTrip(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		newTeam(t, s, "t1")
		newTeam(t, s, "t2")
		full := auth.Key{
			ID: "k2", TeamID: "t1", Name: "full", Digest: [32]byte{0: 1, 31: 255}, Scopes: auth.Scopes,
			CreatedAt: testTime, ExpiresAt: testTime.Add(time.Hour), RevokedAt: testTime.Add(time.Minute), LastUsedAt: testTime.Add(time.Second),
		}
		bare := auth.Key{ID: "k1", TeamID: "t1", Scopes: []auth.Scope{}, CreatedAt: testTime.Add(time.Second)}
		foreign := auth.Key{ID: "k3", TeamID: "t2", Scopes: []auth.Scope{"OF_A_NEWER_VERSION"}, CreatedAt: testTime.Add(-time.Second)}
		testkit.Must(t, s.CreateKey(ctx, bare), s.CreateKey(ctx, full), s.CreateKey(ctx, foreign))

		for _, want := range []auth.Key{full, bare, foreign} {
			if got, err := s.Key(ctx, want.ID); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("key %+v, %v, want %+v", got, err, want)
			}
		}
		for teams, want := range map[page.Teams][]string{
			page.OfTeam("t1"): {"k2", "k1"}, page.OfTeam("t2"): {"k3"}, page.OfTeam("t3"): nil, page.OfTeam(""): nil, allTeams: {"k3", "k2", "k1"},
		} {
			keys, err := s.Keys(ctx, teams, page.All)
			if got := ids(keys, func(k auth.Key) string { return k.ID }); err != nil || !slices.Equal(got, want) {
				t.Errorf("keys of %v: %v, %v, want %v", teams, got, err, want)
			}
		}
	})
}

func TestFirstRevocationTimeIsKept(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))
		for _, at := range []time.Time{testTime, testTime.Add(time.Hour), testTime.Add(-time.Hour)} {
			testkit.Must(t, s.RevokeKey(t.Context(), "k1", at))
		}
		if k, err := s.Key(t.Context(), "k1"); err != nil || !k.RevokedAt.Equal(testTime) {
			t.Errorf("revoked at %v, %v, want %v", k.RevokedAt, err, testTime)
		}
	})
}

func TestLastUseNeverDecreases(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		// Transactions that lock many rows in different orders would deadlock.
		earlier := map[string]time.Time{"unknown": testTime}
		for i := range 50 {
			id := fmt.Sprint("k", i)
			testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: id, TeamID: "t1", CreatedAt: testTime}))
			earlier[id] = testTime
		}
		later := map[string]time.Time{}
		for id := range earlier {
			later[id] = testTime.Add(time.Minute)
		}
		var wg sync.WaitGroup
		for _, batch := range []map[string]time.Time{earlier, later, earlier, later, earlier} {
			wg.Go(func() {
				if err := s.TouchKeys(t.Context(), batch); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		testkit.Must(t, s.TouchKeys(t.Context(), earlier), s.TouchKeys(t.Context(), nil))
		keys, err := s.Keys(t.Context(), page.OfTeam("t1"), page.All)
		testkit.Must(t, err)
		for _, k := range keys {
			if !k.LastUsedAt.Equal(testTime.Add(time.Minute)) {
				t.Errorf("key %s last used at %v, want %v", k.ID, k.LastUsedAt, testTime.Add(time.Minute))
			}
		}
	})
}

func TestEndpointRoundTrip(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		newTeam(t, s, "t1")
		newTeam(t, s, "t2")
		created := team.Endpoint{
			ID: "e1", TeamID: "t1", Name: "Hotline", Enabled: true,
			Modes: []team.Mode{team.Chat, team.WebRTC}, Origins: []string{"https://a.example", "https://*.b.example"},
			CreatedAt: testTime, UpdatedAt: testTime,
		}
		profile := `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"]}],` +
			`"actions":{"hangup":{"reason":"bye","waitForSilence":false}},"speech":{"tts":["acme"]},"unknownMember":{"b":1,"a":[1.0,null,"\u0000"]}}`
		testkit.Must(t, json.Unmarshal([]byte(profile), &created.Profile), s.CreateEndpoint(ctx, created))

		got, err := s.Endpoint(ctx, "e1")
		testkit.Must(t, err)
		if !reflect.DeepEqual(got, created) {
			t.Errorf("endpoint\n%+v, want\n%+v", got, created)
		}
		profileJSON, err := json.Marshal(got.Profile)
		testkit.Must(t, err)
		if canonical(t, profileJSON) != canonical(t, []byte(profile)) {
			t.Errorf("profile %s, want %s with its unknown member", profileJSON, profile)
		}

		changed := team.Endpoint{
			ID: "e1", TeamID: "t1", Name: "renamed", Modes: []team.Mode{}, Origins: []string{},
			CreatedAt: testTime.Add(time.Hour), UpdatedAt: testTime.Add(time.Minute),
		}
		changed.TeamID = "t2"
		updated, err := s.UpdateEndpoint(ctx, "e1", func(e *team.Endpoint) ([]audit.Entry, error) { *e = changed; return nil, nil })
		changed.TeamID, changed.CreatedAt = created.TeamID, created.CreatedAt
		if err != nil || !reflect.DeepEqual(updated, changed) {
			t.Errorf("updated to %+v, %v, want %+v", updated, err, changed)
		}
		if got, err := s.Endpoint(ctx, "e1"); err != nil || !reflect.DeepEqual(got, changed) {
			t.Errorf("endpoint %+v, %v, want %+v with its team and creation time unchanged", got, err, changed)
		}
		rejected := fault.New(fault.Validation, "No.")
		_, err = s.UpdateEndpoint(ctx, "e1", func(e *team.Endpoint) ([]audit.Entry, error) { e.Name = "not saved"; return nil, rejected })
		if got, _ := s.Endpoint(ctx, "e1"); !errors.Is(err, rejected) || got.Name != changed.Name {
			t.Errorf("failed change: error %v, name %q; want %v and %q", err, got.Name, rejected, changed.Name)
		}
	})
}

func TestConcurrentUpdatesAreMerged(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		testkit.Must(t, s.CreateEndpoint(t.Context(), team.Endpoint{ID: "e1", TeamID: "t1", Enabled: true, CreatedAt: testTime, UpdatedAt: testTime}))
		const administrators = 10
		var wg sync.WaitGroup
		for i := range administrators {
			wg.Go(func() {
				_, err := s.UpdateEndpoint(t.Context(), "e1", func(e *team.Endpoint) ([]audit.Entry, error) {
					e.Origins = append(e.Origins, fmt.Sprint("https://", i))
					return nil, nil
				})
				_, failed := s.UpdateTeam(t.Context(), "t1", func(t *team.Team) ([]audit.Entry, error) { t.DailyQuota = new(t.Quota() + 1); return nil, nil })
				if err := errors.Join(err, failed); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		e, err := s.Endpoint(t.Context(), "e1")
		if err != nil || len(e.Origins) != administrators {
			t.Errorf("origins %v, %v; want the %d added concurrently", e.Origins, err, administrators)
		}
		if team1, err := s.Team(t.Context(), "t1"); err != nil || team1.Quota() != team.DefaultDailyQuota+administrators {
			t.Errorf("quota %d, %v; want %d after %d concurrent increments", team1.Quota(), err, team.DefaultDailyQuota+administrators, administrators)
		}
	})
}

func TestEndpointsArePaged(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		newTeam(t, s, "t2")
		for i := range 9 {
			testkit.Must(t, s.CreateEndpoint(t.Context(), team.Endpoint{
				ID: fmt.Sprintf("e%d", 8-i), TeamID: []string{"t1", "t2", "t1"}[i%3],
				Profile: wire.GatewayProfile{Other: jsontext.Value(`{}`)}, CreatedAt: testTime, UpdatedAt: testTime,
			}))
		}
		for _, tt := range []struct {
			name  string
			teams page.Teams
			after string
			limit int
			want  []string
		}{
			{"first page", page.OfTeam("t1"), "", 4, []string{"e0", "e2", "e3", "e5"}},
			{"last page", page.OfTeam("t1"), "e5", 4, []string{"e6", "e8"}},
			{"past the end", page.OfTeam("t1"), "e8", 4, nil},
			{"cursor between IDs", page.OfTeam("t2"), "e2", 9, []string{"e4", "e7"}},
			{"all teams", allTeams, "e3", 3, []string{"e4", "e5", "e6"}},
			{"unknown team", page.OfTeam("t3"), "", 9, nil},
			{"no team", page.Teams{}, "", 9, nil},
			{"cursor with invalid text", page.OfTeam("t1"), "e\x00", 9, nil},
		} {
			found, err := s.Endpoints(t.Context(), tt.teams, page.Query{After: tt.after, Limit: tt.limit})
			if got := ids(found, func(e team.Endpoint) string { return e.ID }); err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
			}
		}
	})
}

func ids[T any](records []T, id func(T) string) (all []string) {
	for _, record := range records {
		all = append(all, id(record))
	}
	return all
}

// canonical returns the canonical form of a JSON text.
func canonical(t *testing.T, text jsontext.Value) string {
	t.Helper()
	text = slices.Clone(text)
	testkit.Must(t, text.Canonicalize())
	return string(text)
}
