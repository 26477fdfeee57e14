package audit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/audit"
	"telapi/internal/fault"
)

func TestChangesListsMembersThatDiffer(t *testing.T) {
	type object = map[string]any
	for _, tt := range []struct {
		before, after object
		want          string
	}{
		{object{"a": 1, "b": "x"}, object{"a": 1, "b": "x"}, `{}`},
		{object{"a": 1, "b": "x"}, object{"a": 2, "b": "x"}, `{"a":{"from":1,"to":2}}`},
		{object{}, object{"a": nil}, `{"a":{"to":null}}`},
		{object{"a": []int{1}}, object{}, `{"a":{"from":[1]}}`},
		{object{"a": object{"x": 1, "y": 2}}, object{"a": object{"y": 2, "x": 1}}, `{}`},
	} {
		changes, err := audit.Changes(tt.before, tt.after)
		if err != nil {
			t.Fatal(err)
		}
		entry, err := audit.New(t.Context(), time.Now(), audit.UpdateTeam, "team:t", "t", changes)
		if err != nil || string(entry.Details) != tt.want {
			t.Errorf("%v to %v: %s (error %v), want %s", tt.before, tt.after, entry.Details, err, tt.want)
		}
	}
}

func TestEntryHasTheActorOfItsContext(t *testing.T) {
	entry, err := audit.New(t.Context(), time.Now(), audit.CreateTeam, "team:t", "t", struct{}{})
	if err != nil || entry.Actor.Type != audit.System {
		t.Errorf("actor %v (error %v), want the system", entry.Actor, err)
	}
	ada := audit.Actor{Type: audit.Console, ID: "ada"}
	entry, err = audit.New(audit.WithActor(t.Context(), ada), time.Now(), audit.CreateTeam, "team:t", "t", struct{}{})
	if err != nil || entry.Actor != ada {
		t.Errorf("actor %v (error %v), want %v", entry.Actor, err, ada)
	}
}

func TestTimesHaveTheSameLength(t *testing.T) {
	at := time.Date(2026, 11, 16, 8, 10, 0, 0, time.UTC)
	for ms, want := range map[int]string{0: "00.000Z", 400: "00.400Z", 456: "00.456Z"} {
		raw, err := json.Marshal(audit.Entry{At: at.Add(time.Duration(ms) * time.Millisecond)})
		if err != nil || !strings.Contains(string(raw), `"at":"2026-11-16T08:10:`+want+`"`) {
			t.Errorf("%d ms: %s (%v), want %s", ms, raw, err, want)
		}
	}
}

func TestQueryReportsEveryIssue(t *testing.T) {
	for name, tt := range map[string]struct {
		params map[string][]string
		want   []string
	}{
		"empty":         {nil, nil},
		"valid":         {map[string][]string{"from": {"2026-11-01T00:00:00Z"}, "to": {"2026-11-02T00:00:00+01:00"}, "teamId": {"t"}, "limit": {"200"}}, nil},
		"no times":      {map[string][]string{"from": {"2026-11-01"}, "to": {"now"}, "limit": {"0"}, "cursor": {"x"}}, []string{"/query/from", "/query/to", "/query/limit", "/query/cursor"}},
		"reversed":      {map[string][]string{"from": {"2026-11-02T00:00:00Z"}, "to": {"2026-11-01T00:00:00Z"}}, []string{"/query/from"}},
		"sent twice":    {map[string][]string{"teamId": {"a", "b"}}, []string{"/query/teamId"}},
		"before epoch":  {map[string][]string{"from": {"0001-01-01T00:00:00Z"}}, []string{"/query/from"}},
		"same instants": {map[string][]string{"from": {"2026-11-02T00:00:00Z"}, "to": {"2026-11-02T00:00:00Z"}}, []string{"/query/from"}},
	} {
		_, err := audit.ParseQuery(tt.params)
		var paths []string
		if err != nil {
			issues, _ := fault.From(err).Details.([]fault.Issue)
			for _, i := range issues {
				paths = append(paths, i.Path)
			}
		}
		if !slices.Equal(paths, tt.want) {
			t.Errorf("%s: issues at %q, want %q", name, paths, tt.want)
		}
	}
}
