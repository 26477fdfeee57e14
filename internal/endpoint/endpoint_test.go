package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

// shelf is a Store in memory: what a directory needs of one, without a server.
type shelf []Endpoint

func (s *shelf) CreateEndpoint(_ context.Context, e Endpoint) error {
	*s = append(*s, e)
	return nil
}

func (s *shelf) Endpoint(_ context.Context, id string) (Endpoint, error) {
	for _, e := range *s {
		if e.ID == id {
			return e, nil
		}
	}
	return Endpoint{}, fault.New(fault.NotFound, "There is no such endpoint.")
}

func (s *shelf) Endpoints(_ context.Context, teamID, after string, limit int) ([]Endpoint, error) {
	var found []Endpoint
	for _, e := range *s {
		if (teamID == "" || e.TeamID == teamID) && e.ID > after {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return found[:min(len(found), limit)], nil
}

func (s *shelf) UpdateEndpoint(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error) {
	e, err := s.Endpoint(ctx, id)
	if err == nil {
		err = change(&e)
	}
	for i := range *s {
		if (*s)[i].ID == id && err == nil {
			(*s)[i] = e
		}
	}
	return e, err
}

func paths(err error) []string {
	var e *fault.Error
	if !errors.As(err, &e) {
		return nil
	}
	var out []string
	list, _ := e.Details.([]fault.Issue)
	for _, i := range list {
		out = append(out, i.Path)
	}
	return out
}

func TestAnEndpointIsBroughtIntoItsNormalForm(t *testing.T) {
	e := Endpoint{TeamID: "t", Name: "  Front desk ", Modes: []Mode{Chat, WebRTC, Chat}, Origins: []string{"HTTPS://Shop.Example/", "https://shop.example:443", "http://localhost:8080", "http://[::1]:80"}}
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	if e.Name != "Front desk" || !slices.Equal(e.Modes, []Mode{WebRTC, Chat}) {
		t.Errorf("%q %v", e.Name, e.Modes)
	}
	if want := []string{"https://shop.example", "http://localhost:8080", "http://[::1]"}; !slices.Equal(e.Origins, want) {
		t.Errorf("origins %v, want %v", e.Origins, want)
	}
}

func TestEverythingWrongWithAnEndpointIsReported(t *testing.T) {
	e := Endpoint{
		Modes: []Mode{"fax"}, Name: strings.Repeat("ü", 121),
		Origins: []string{"shop.example", "https://a/b", "ftp://a", "https://u:p@a", "https://a?x", "null", "*", "https://*.a", "https://a#f", "https://", "https://ok.example"},
		Profile: wire.GatewayProfile{CommandSources: []string{"mars"}},
	}
	want := []string{"/name", "/teamId", "/modes/0"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("/origins/%d", i))
	}
	want = append(want, "/gatewayProfile/commandSources/0")
	if got := paths(e.Validate()); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	for name, e := range map[string]Endpoint{
		"/name":    {TeamID: "t", Name: " ", Modes: Modes},
		"/modes":   {TeamID: "t", Name: "n"},
		"/origins": {TeamID: "t", Name: "n", Modes: Modes, Origins: make([]string, 101)},
	} {
		if got := paths(e.Validate()); !slices.Equal(got, []string{name}) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := paths((&Endpoint{TeamID: "t", Name: "a\nb", Modes: Modes}).Validate()); !slices.Equal(got, []string{"/name"}) {
		t.Errorf("control character: %v", got)
	}
}

func TestAProfileIsReadWithAllItsIssues(t *testing.T) {
	p, err := ParseProfile([]byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"],"later":1}],"theme":"dark"}`))
	if err != nil || string(p.Other) != `{"theme":"dark"}` || string(p.CommandPolicies[0].Other) != `{"later":1}` {
		t.Errorf("%+v, %v", p, err)
	}
	_, err = ParseProfile([]byte(`{"commandSources":["bot","mars",7],"commandPolicies":[{"type":"fly","enabled":"yes"},{"type":"transfer","enabled":true,"allowedTargets":["http:*"]}],"actions":[]}`))
	want := []string{"/commandSources/2", "/commandPolicies/0/enabled", "/actions", "/commandSources/1", "/commandPolicies/0/type", "/commandPolicies/1/allowedTargets/0"}
	if got := paths(err); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	for _, bad := range []string{"", "{", `{"a":1,"a":2}`} {
		if _, err := ParseProfile([]byte(bad)); !fault.Is(err, fault.MalformedJSON) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseProfile([]byte(`[]`)); !fault.Is(err, fault.Validation) {
		t.Errorf("a list: %v", err)
	}
}

func directory(t *testing.T, n int) (*Directory, *shelf) {
	t.Helper()
	store := new(shelf)
	now := time.Unix(1_700_000_000, 0)
	registry := &Registry{store, func() time.Time { return now }}
	for i := range n {
		for _, team := range []string{"ours", "theirs"} {
			e := Endpoint{TeamID: team, Name: fmt.Sprintf("%s %d", team, i), Modes: []Mode{Chat, WebRTC}, Profile: wire.GatewayProfile{
				CommandSources:  []string{"bot"},
				CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}, {Type: "transfer"}, {Type: "emit_event", Enabled: true}},
				Speech:          wire.SpeechChain{STT: []string{"a"}},
			}}
			if _, err := registry.Create(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &Directory{store, Deployment{"0.9.18", Features{APIAccess: true, DisabledCommands: []string{"emit_event"}}}}, store
}

func TestATeamPagesThroughItsOwnEndpointsByAge(t *testing.T) {
	d, _ := directory(t, 7)
	var names []string
	query := map[string][]string{"limit": {"3"}}
	for pages := 0; ; pages++ {
		page, err := d.List(t.Context(), "ours", query)
		if err != nil || pages > 3 {
			t.Fatal(pages, err)
		}
		for _, v := range page.Data {
			names = append(names, v.Name)
		}
		if page.NextCursor == nil {
			break
		}
		query["cursor"] = []string{*page.NextCursor}
	}
	if want := []string{"ours 0", "ours 1", "ours 2", "ours 3", "ours 4", "ours 5", "ours 6"}; !slices.Equal(names, want) {
		t.Errorf("got %v", names)
	}
	page, err := d.List(t.Context(), "nobody", nil)
	if err != nil || page.Data == nil || len(page.Data) != 0 || page.NextCursor != nil {
		t.Errorf("a team without endpoints: %+v, %v", page, err)
	}
	exact, err := d.List(t.Context(), "ours", map[string][]string{"limit": {"7"}})
	if err != nil || exact.NextCursor != nil {
		t.Errorf("a full last page has a next one: %v", err)
	}
}

func TestTheListShowsWhatAnEndpointCanDo(t *testing.T) {
	d, _ := directory(t, 1)
	page, err := d.List(t.Context(), "ours", nil)
	if err != nil {
		t.Fatal(err)
	}
	page.Data[0].ID = "ep_1"
	got, err := json.Marshal(page)
	want := `{"data":[{"id":"ep_1","name":"ours 0","enabled":true,"modes":["webrtc","chat"],"capabilities":{"modes":["chat"],"commands":["hangup"],"commandSources":["bot"],"speech":{"stt":["a"]}},"gatewayProfile":{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true},{"type":"transfer","enabled":false},{"type":"emit_event","enabled":true}],"speech":{"stt":["a"]}}}],"nextCursor":null}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s\nwant %s, %v", got, want, err)
	}
}

func TestHostilePageParametersAreIssues(t *testing.T) {
	d, _ := directory(t, 1)
	const good = "ep_00000000-0000-7000-8000-000000000000"
	for _, cursor := range []string{"x", "!!!", "ep_", "ep_x", "ep_' OR 1=1 --", good[3:], "ep_{" + good[3:] + "}", good + "=", good + "\n", strings.Repeat("A", 10000), "\x00"} {
		_, err := d.List(t.Context(), "ours", map[string][]string{"cursor": {cursor}})
		if got := paths(err); !slices.Equal(got, []string{"/query/cursor"}) {
			t.Errorf("%.20q: %v", cursor, got)
		}
	}
	if _, err := d.List(t.Context(), "ours", map[string][]string{"cursor": {good}}); err != nil {
		t.Errorf("a cursor of ours: %v", err)
	}
	for _, limit := range []string{"0", "-1", "201", "x", "1e2", "99999999999999999999", " 1"} {
		_, err := d.List(t.Context(), "ours", map[string][]string{"limit": {limit}, "cursor": {"garbage"}})
		if got := paths(err); !slices.Equal(got, []string{"/query/limit", "/query/cursor"}) {
			t.Errorf("%q: %v", limit, got)
		}
	}
	_, err := d.List(t.Context(), "ours", map[string][]string{"limit": {"1", "2"}})
	if got := paths(err); !slices.Equal(got, []string{"/query/limit"}) {
		t.Errorf("twice: %v", got)
	}
}

func FuzzPage(f *testing.F) {
	f.Add("ep_00000000-0000-7000-8000-000000000000", "200")
	f.Fuzz(func(t *testing.T, cursor, limit string) {
		after, n, err := pageOf(map[string][]string{"cursor": {cursor}, "limit": {limit}})
		if err == nil && (after != cursor || n < 1 || n > maxPage) {
			t.Errorf("%q and %q were read as %q and %d", cursor, limit, after, n)
		}
	})
}

func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","allowedTargets":["sip:*@x"]}],"z":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("a good profile cannot be stored: %v", err)
		}
		if _, err := ParseProfile(written); err != nil {
			t.Fatalf("%s: %v", written, err)
		}
	})
}

func TestAForeignEndpointIsNotFound(t *testing.T) {
	d, store := directory(t, 1)
	own, foreign := (*store)[0], (*store)[1]
	if got, err := d.Find(t.Context(), "ours", own.ID); err != nil || got.ID != own.ID {
		t.Errorf("own: %v", err)
	}
	for _, id := range []string{foreign.ID, "ep_none", ""} {
		if _, err := d.Find(t.Context(), "ours", id); !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", id, err)
		}
		if _, err := d.Capabilities(t.Context(), "ours", id); !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestTheRuntimeDocumentIsCompleteAndStable(t *testing.T) {
	doc := Deployment{"0.9.18", Features{WebRTC: true, APIAccess: true}}.Capabilities()
	for range 20 {
		if again := (Deployment{"0.9.18", Features{WebRTC: true, APIAccess: true}}).Capabilities(); !bytes.Equal(again.Body, doc.Body) || again.ETag != doc.ETag {
			t.Fatal("the document differs from call to call")
		}
	}
	if !strings.HasPrefix(doc.ETag, `"`) || doc.ETag == (Deployment{"0.9.19", Features{}}).Capabilities().ETag {
		t.Errorf("ETag %s", doc.ETag)
	}
	var got struct {
		Version      string          `json:"version"`
		Features     map[string]bool `json:"features"`
		Modes        []Mode          `json:"modes"`
		MessageTypes []string        `json:"messageTypes"`
		Commands     []struct {
			Type, Apply string
			Fields      []struct{ Name, Type string }
		} `json:"commands"`
		SessionParams struct {
			Properties map[string]map[string]any `json:"properties"`
		} `json:"sessionParams"`
		AudioFormats []AudioFormat `json:"audioFormats"`
		Limits       Limits        `json:"limits"`
	}
	if err := json.Unmarshal(doc.Body, &got, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	if got.Version != "0.9.18" || len(got.MessageTypes) != 11 || len(got.Modes) != 3 || !got.Features["webrtc"] || len(got.AudioFormats) != 2 {
		t.Errorf("%+v", got)
	}
	if len(got.Commands) != len(command.Catalogue) || len(got.SessionParams.Properties) != len(command.SessionParams) {
		t.Errorf("%d commands, %d parameters", len(got.Commands), len(got.SessionParams.Properties))
	}
	for _, c := range got.Commands {
		if c.Apply == "" || len(c.Fields) == 0 {
			t.Errorf("%s is not described", c.Type)
		}
	}
	if l := got.Limits; l.CallbackBodyBytes != 1<<20 || l.SIPHeaders != 100 || l.SIPHeaderCharacters != 12000 || l.Channel.FrameBytes != 64<<10 {
		t.Errorf("%+v", l)
	}
}

func TestAnEndpointsDocumentSaysWhatThisOneCanDo(t *testing.T) {
	d, store := directory(t, 1)
	doc, err := d.Capabilities(t.Context(), "ours", (*store)[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	var got capabilities
	if err := json.Unmarshal(doc.Body, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Commands) != 1 || got.Commands[0].Type != "hangup" || !slices.Equal(got.Modes, []Mode{Chat}) {
		t.Errorf("%v %v", got.Commands, got.Modes)
	}
	if got.Endpoint.Name != "ours 0" || !slices.Equal(got.Endpoint.Speech.STT, []string{"a"}) || !slices.Equal(got.Endpoint.CommandSources, []string{"bot"}) {
		t.Errorf("%+v", got.Endpoint)
	}
}

func TestAnUpdateChangesWhatItNames(t *testing.T) {
	_, store := directory(t, 1)
	later := time.Unix(1_800_000_000, 0)
	registry := &Registry{store, func() time.Time { return later }}
	before := (*store)[0]
	e, err := registry.Update(t.Context(), before.ID, func(e *Endpoint) { e.Name, e.Enabled = "Renamed", false })
	if err != nil || e.Name != "Renamed" || e.Enabled || !e.UpdatedAt.Equal(later) || !slices.Equal(e.Modes, before.Modes) || !e.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := registry.Update(t.Context(), before.ID, func(e *Endpoint) { e.Modes = []Mode{"fax"} }); !fault.Is(err, fault.Validation) || !slices.Equal((*store)[0].Modes, before.Modes) {
		t.Errorf("a bad update: %v", err)
	}
	if _, err := registry.Update(t.Context(), "ep_none", nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("nobody's: %v", err)
	}
	all, err := registry.List(t.Context(), "")
	if err != nil || len(all) != 2 || !strings.HasPrefix(all[0].ID, "ep_") || all[0].ID >= all[1].ID {
		t.Errorf("%v, %v", all, err)
	}
}
