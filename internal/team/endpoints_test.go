package team_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

var created = time.Unix(1_700_000_000, 0).UTC()

// service is a registry and a catalog on the same database.
type service struct {
	*team.EndpointRegistry
	*team.EndpointCatalog
}

// newService returns a service on an empty SQLite database with the teams ours
// and theirs, each with n endpoints.
func newService(t *testing.T, n int) service {
	t.Helper()
	store := sqlite.Open(t, t.TempDir())
	deployment := team.Deployment{Version: "0.9.20", Features: team.Features{APIAccess: true, DisabledCommands: []string{"emit_event"}}}
	service := service{
		&team.EndpointRegistry{Store: store, Announcer: announcements{}, Now: func() time.Time { return created }},
		team.NewEndpointCatalog(store, deployment),
	}
	t.Cleanup(service.Close)
	for _, id := range []string{"ours", "theirs"} {
		testkit.Must(t, store.CreateTeam(t.Context(), team.Team{ID: id, Name: id, CreatedAt: created}))
		for i := range n {
			create(t, service, id, fmt.Sprintf("%s %d", id, i))
		}
	}
	return service
}

// list returns one page of a team's endpoints.
func (s service) list(ctx context.Context, teamID string, params map[string][]string) (page.Page[team.Endpoint], error) {
	var issues fault.Issues
	query := page.Parse(params, team.ValidEndpointID, &issues)
	if err := issues.Err(); err != nil {
		return page.Page[team.Endpoint]{}, err
	}
	return page.Read(query, func(q page.Query) ([]team.Endpoint, error) { return s.Store.Endpoints(ctx, page.OfTeam(teamID), q) },
		func(e team.Endpoint) string { return e.ID })
}

// announcements ignores announcements.
type announcements struct{}

func (announcements) Announce(context.Context, string) error { return nil }

func create(t *testing.T, s service, teamID, name string) team.Endpoint {
	t.Helper()
	e, err := s.Create(t.Context(), team.Endpoint{
		TeamID: teamID, Name: name, Enabled: true, Modes: []team.Mode{team.Chat, team.WebRTC},
		Profile: wire.GatewayProfile{
			CommandSources:  []string{"bot"},
			CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}, {Type: "transfer"}, {Type: "emit_event", Enabled: true}},
			Speech:          wire.SpeechChain{STT: []string{"a"}},
		},
	})
	testkit.Must(t, err)
	return e
}

func TestListReturnsOwnEndpointsOldestFirst(t *testing.T) {
	s := newService(t, 7)
	var names []string
	query := map[string][]string{"limit": {"3"}}
	for pages := 0; ; pages++ {
		page, err := s.list(t.Context(), "ours", query)
		if err != nil || pages > 3 {
			t.Fatalf("page %d: error %v, want three pages", pages, err)
		}
		for _, v := range page.Data {
			names = append(names, v.Name)
		}
		if page.NextCursor == nil {
			break
		}
		query["cursor"] = []string{*page.NextCursor}
	}
	testkit.Equal(t, "listed", names, []string{"ours 0", "ours 1", "ours 2", "ours 3", "ours 4", "ours 5", "ours 6"})
	page, err := s.list(t.Context(), "unknown", nil)
	if err != nil || page.Data == nil || len(page.Data) != 0 || page.NextCursor != nil {
		t.Errorf("team without endpoints: page %+v (error %v), want an empty list", page, err)
	}
	full, err := s.list(t.Context(), "ours", map[string][]string{"limit": {"7"}})
	if err != nil || full.NextCursor != nil {
		t.Errorf("full last page: next cursor %v (error %v), want none", full.NextCursor, err)
	}
	testkit.WantFault(t, "invalid limit", testkit.ErrorOf(s.list(t.Context(), "ours", map[string][]string{"limit": {"0"}})), fault.Validation)
}

func TestListIncludesCapabilities(t *testing.T) {
	s := newService(t, 1)
	found, err := s.list(t.Context(), "ours", nil)
	testkit.Must(t, err)
	page := page.Map(found, s.Deployment.View)
	page.Data[0].ID = "ep_1"
	got, err := json.Marshal(page)
	want := `{"data":[{"id":"ep_1","name":"ours 0","enabled":true,"modes":["webrtc","chat"],"capabilities":{"modes":["chat"],"commands":["hangup"],"commandSources":["bot"],"speech":{"stt":["a"]}},"gatewayProfile":{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true},{"type":"transfer","enabled":false},{"type":"emit_event","enabled":true}],"speech":{"stt":["a"]}}}],"nextCursor":null}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s\nwant %s, %v", got, want, err)
	}
}

func TestEndpointOfAnotherTeamIsNotFound(t *testing.T) {
	s := newService(t, 0)
	own, foreign := create(t, s, "ours", "own"), create(t, s, "theirs", "foreign")
	if got, err := s.Endpoint(t.Context(), "ours", own.ID); err != nil || got.ID != own.ID {
		t.Errorf("get own endpoint: %q (error %v), want %q", got.ID, err, own.ID)
	}
	if doc, err := s.Capabilities(t.Context(), "ours", own.ID); err != nil || !strings.Contains(string(doc), own.ID) {
		t.Errorf("capabilities of own endpoint: %s (error %v), want them to contain %s", doc, err, own.ID)
	}
	for _, id := range []string{foreign.ID, "ep_none", ""} {
		testkit.WantFault(t, fmt.Sprintf("get %q", id), testkit.ErrorOf(s.Endpoint(t.Context(), "ours", id)), fault.NotFound)
		testkit.WantFault(t, fmt.Sprintf("capabilities of %q", id), testkit.ErrorOf(s.Capabilities(t.Context(), "ours", id)), fault.NotFound)
	}
}

func TestUpdateChangesOnlyGivenFields(t *testing.T) {
	s := newService(t, 0)
	before := create(t, s, "ours", "shop")
	create(t, s, "theirs", "foreign")
	later := time.Unix(1_800_000_000, 0).UTC()
	s.Now = func() time.Time { return later }
	e, err := s.Update(t.Context(), before.ID, func(e *team.Endpoint) error { e.Name, e.Enabled = "Renamed", false; return nil })
	if err != nil || e.Name != "Renamed" || e.Enabled || !e.UpdatedAt.Equal(later) || !slices.Equal(e.Modes, before.Modes) || !e.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("updated %+v (error %v), want only name, enabled and UpdatedAt changed", e, err)
	}
	_, err = s.Update(t.Context(), before.ID, func(e *team.Endpoint) error { e.Modes = []team.Mode{"fax"}; return nil })
	stored, _ := s.Endpoint(t.Context(), "ours", before.ID)
	if !fault.Is(err, fault.Validation) || !slices.Equal(stored.Modes, before.Modes) {
		t.Errorf("invalid update: error %v and stored modes %v, want %s and %v", err, stored.Modes, fault.Validation, before.Modes)
	}
	testkit.WantFault(t, "unknown endpoint", testkit.ErrorOf(s.Update(t.Context(), "ep_none", func(*team.Endpoint) error { return nil })), fault.NotFound)
	all, err := s.Store.Endpoints(t.Context(), page.OfAllTeams(auth.Principal{Scopes: auth.Scopes}), page.All)
	if err != nil || len(all) != 2 || !strings.HasPrefix(all[0].ID, "ep_") || all[0].ID >= all[1].ID {
		t.Errorf("list of all teams: %v (error %v), want two endpoints in order of ID", all, err)
	}
}

func TestCachedEndpointFollowsChanges(t *testing.T) {
	s := newService(t, 0)
	s.Up()
	id := create(t, s, "ours", "new").ID
	want := func(when, name string) {
		t.Helper()
		if e, err := s.Endpoint(t.Context(), "ours", id); err != nil || e.Name != name {
			t.Errorf("%s: name %q, %v, want %q", when, e.Name, err, name)
		}
	}
	want("at first", "new")
	testkit.Must(t, testkit.ErrorOf(s.Update(t.Context(), id, func(e *team.Endpoint) error { e.Name = "changed"; return nil })))
	want("before the announcement", "new")
	s.Message(team.EndpointTopicPrefix + id)
	want("after it", "changed")
	testkit.WantFault(t, "cached endpoint of another team", testkit.ErrorOf(s.Endpoint(t.Context(), "theirs", id)), fault.NotFound)
	testkit.Must(t, s.Delete(t.Context(), id, func(team.Endpoint) error { return nil }))
	s.Message(team.EndpointTopicPrefix + id)
	testkit.WantFault(t, "after its deletion", testkit.ErrorOf(s.Endpoint(t.Context(), "ours", id)), fault.NotFound)
}
