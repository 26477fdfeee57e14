package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

type object = map[string]any

func TestEntryHasTheMembersThatDiffer(t *testing.T) {
	for _, tt := range []struct {
		before, after any
		want          string
	}{
		{object{"a": 1, "b": "x"}, object{"a": 1, "b": "x"}, `{}`},
		{nil, nil, `{}`},
		{object{"a": 1, "b": "x"}, object{"a": 2, "b": "x"}, `{"changes":[{"path":"/a","from":1,"to":2}]}`},
		{object{}, object{"a": nil}, `{"changes":[{"path":"/a","to":null}]}`},
		{object{"a": []int{1}}, nil, `{"changes":[{"path":"/a/0","from":1}]}`},
		{nil, object{"a": []int{}}, `{"changes":[{"path":"/a","to":[]}]}`},
		{object{"a": object{}}, object{"a": object{"b": 1}}, `{"changes":[{"path":"/a/b","to":1}]}`},
		{object{"a": object{"x": 1, "y": 2}}, object{"a": object{"y": 2, "x": 1}}, `{}`},
		{object{"a": []any{object{"on": true, "n": 1}, 5}}, object{"a": []any{object{"on": false, "n": 1}}}, `{"changes":[{"path":"/a/0/on","from":true,"to":false},{"path":"/a/1","from":5}]}`},
		{object{"a": object{"b": 1}}, object{"a": []int{1}}, `{"changes":[{"path":"/a","from":{"b":1},"to":[1]}]}`},
		{object{"a/b~": 1}, object{"a/b~": 2}, `{"changes":[{"path":"/a~1b~0","from":1,"to":2}]}`},
	} {
		entry := audit.New(t.Context(), time.Now(), audit.UpdateTeam, "team:t", "t", tt.before, tt.after)
		if string(entry.Details) != tt.want || entry.Unchanged() != (tt.want == `{}`) {
			t.Errorf("%v to %v: %s, want %s", tt.before, tt.after, entry.Details, tt.want)
		}
	}
}

func TestEntryIsSmallHoweverLargeTheChange(t *testing.T) {
	long, deep := strings.Repeat("ü\x00", 30_000), any(1)
	for range 1000 {
		deep = []any{deep}
	}
	many := object{}
	for n := range 5000 {
		many[strconv.Itoa(n)] = n
	}
	for name, after := range map[string]object{
		"long value":  {"a": long},
		"long name":   {strings.Repeat("~", 60_000): many},
		"many values": many,
		"deep":        {"a": deep},
	} {
		entry := audit.New(t.Context(), time.Now(), audit.CreateEndpoint, "endpoint:e", "t", nil, after)
		if len(entry.Details) > 2100 || !entry.Details.IsValid() || entry.Unchanged() {
			t.Errorf("%s: %d bytes, want some JSON of at most 2100", name, len(entry.Details))
		}
		if got := strings.Contains(string(entry.Details), `"more":`); got != strings.HasSuffix(name, "values") && name != "long name" {
			t.Errorf("%s: counts more changes: %v in %.100s", name, got, entry.Details)
		}
	}
}

// store is a Store in memory.
type store struct {
	audit.Store
	mu      sync.Mutex
	entries []audit.Entry
	old     int64 // number of entries to delete
	before  time.Time
}

func (s *store) AddAuditEntries(_ context.Context, entries ...audit.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, entries...)
	return nil
}

func (s *store) DeleteAuditEntries(_ context.Context, before time.Time, limit int) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deleted := min(s.old, int64(limit))
	s.old, s.before = s.old-deleted, before
	return deleted, nil
}

func TestRejectedRequestsShareAnEntryPerActorAndMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		r := audit.NewRejections(s, slog.New(slog.DiscardHandler), time.Now)
		stop := testkit.Start(t, r.Run)
		eve, mallory := audit.Actor{Type: audit.APIKey, ID: "eve"}, audit.Actor{Type: audit.Console, ID: "mallory"}
		for n := range 10_000 {
			r.Record(eve, "t1", audit.Attempt{Request: fmt.Sprintf("GET /%d", n/5000), Code: fault.NotFound})
		}
		r.Record(mallory, "t2", audit.Attempt{Request: "DELETE /" + strings.Repeat("x", 10_000), Code: fault.Forbidden})
		time.Sleep(time.Minute)
		synctest.Wait()
		r.Record(eve, "t1", audit.Attempt{Request: "GET /2", Code: fault.NotFound})
		for n := range 2000 { // keys that were created for the attack
			r.Record(audit.Actor{Type: audit.APIKey, ID: strconv.Itoa(n)}, "t1", audit.Attempt{Request: "GET /3", Code: fault.NotFound})
		}
		stop()
		var got []string
		for _, e := range s.entries {
			if e.Action != audit.RejectRequest || len(e.Details) > 2100 {
				t.Errorf("%s entry with %d bytes", e.Action, len(e.Details))
			}
			if e.Actor == eve {
				got = append(got, e.TeamID+" "+e.Target+" "+string(e.Details))
			}
		}
		want := []string{
			`t1 team:t1 {"requests":10000,"attempts":[{"request":"GET /0","code":"NOT_FOUND"},{"request":"GET /1","code":"NOT_FOUND"}]}`,
			`t1 team:t1 {"requests":1,"attempts":[{"request":"GET /2","code":"NOT_FOUND"}]}`,
		}
		if !slices.Equal(got, want) || len(s.entries) != 2+1000+1 {
			t.Errorf("%d entries, those of one actor are\n%q, want\n%q", len(s.entries), got, want)
		}
	})
}

// leases are leases of which another instance may hold one.
type leases struct{ taken bool }

func (l leases) Try(ctx context.Context, _ string) (context.Context, func(), bool, error) {
	return ctx, func() {}, !l.taken, nil
}

func TestOneInstanceDeletesOldEntries(t *testing.T) {
	for _, tt := range []struct {
		name      string
		taken     bool
		retention time.Duration
		left      int64
	}{
		{"free lease", false, time.Hour, 0},
		{"lease of another instance", true, time.Hour, 1234},
		{"kept forever", false, 0, 1234},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{old: 1234}
			stop := testkit.Start(t, func(ctx context.Context) {
				audit.DeleteOld(ctx, s, leases{tt.taken}, tt.retention, slog.New(slog.DiscardHandler))
			})
			synctest.Wait()
			stop()
			if s.old != tt.left || tt.left == 0 && !s.before.Equal(time.Now().Add(-tt.retention)) {
				t.Errorf("%s: %d entries left, deleted before %s; want %d", tt.name, s.old, s.before, tt.left)
			}
		})
	}
}

func TestEntryHasTheActorOfItsContext(t *testing.T) {
	entry := audit.New(t.Context(), time.Now(), audit.CreateTeam, "team:t", "t", nil, nil)
	if entry.Actor.Type != audit.System {
		t.Errorf("actor %v, want the system", entry.Actor)
	}
	ada := audit.Actor{Type: audit.Console, ID: "ada"}
	entry = audit.New(audit.WithActor(t.Context(), ada), time.Now(), audit.CreateTeam, "team:t", "t", nil, nil)
	testkit.Equal(t, "actor", entry.Actor, ada)
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
		"valid":         {map[string][]string{"from": {"2026-11-01T00:00:00Z"}, "to": {"2026-11-02T00:00:00+01:00"}, "limit": {"200"}}, nil},
		"no times":      {map[string][]string{"from": {"2026-11-01"}, "to": {"now"}, "limit": {"0"}, "cursor": {"x"}}, []string{"/query/from", "/query/to", "/query/limit", "/query/cursor"}},
		"reversed":      {map[string][]string{"from": {"2026-11-02T00:00:00Z"}, "to": {"2026-11-01T00:00:00Z"}}, []string{"/query/from"}},
		"sent twice":    {map[string][]string{"to": {"2026-11-02T00:00:00Z", "2026-11-02T00:00:00Z"}}, []string{"/query/to"}},
		"no values":     {map[string][]string{"from": {""}, "to": {""}, "limit": {""}, "cursor": {""}}, []string{"/query/from", "/query/to", "/query/limit", "/query/cursor"}},
		"before epoch":  {map[string][]string{"from": {"0001-01-01T00:00:00Z"}}, []string{"/query/from"}},
		"same instants": {map[string][]string{"from": {"2026-11-02T00:00:00Z"}, "to": {"2026-11-02T00:00:00Z"}}, []string{"/query/from"}},
	} {
		var issues fault.Issues
		audit.ParseQuery(tt.params, &issues)
		testkit.Equal(t, name+": issues at", testkit.IssuePaths(issues.Err()), tt.want)
	}
}
