package page

import (
	"slices"
	"strings"
	"testing"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

var validID = UUID("ep_")

func parse(params map[string][]string) (after string, limit int, err error) {
	var issues fault.Issues
	q := Parse(params, validID, &issues)
	return q.After, q.Limit, issues.Err()
}

func TestParseReportsInvalidParameters(t *testing.T) {
	const valid = "ep_00000000-0000-7000-8000-000000000000"
	if after, limit, err := parse(map[string][]string{"cursor": {valid}}); err != nil || after != valid || limit != DefaultLimit {
		t.Errorf("valid cursor: after %q, limit %d, error %v; want %q and %d", after, limit, err, valid, DefaultLimit)
	}
	for _, cursor := range []string{
		"x", "!!!", "ep_", "ep_x", "ep_' OR 1=1 --", valid[3:], "ep_{" + valid[3:] + "}", valid + "=", valid + "\n", strings.Repeat("A", 10000), "\x00",
	} {
		_, _, err := parse(map[string][]string{"cursor": {cursor}})
		if got := testkit.IssuePaths(err); !slices.Equal(got, []string{"/query/cursor"}) {
			t.Errorf("cursor %.20q: issues at %v, want /query/cursor", cursor, got)
		}
	}
	for _, limit := range []string{"0", "-1", "201", "x", "1e2", "99999999999999999999", " 1"} {
		_, _, err := parse(map[string][]string{"limit": {limit}, "cursor": {"invalid"}})
		if got := testkit.IssuePaths(err); !slices.Equal(got, []string{"/query/limit", "/query/cursor"}) {
			t.Errorf("limit %q: issues at %v, want /query/limit and /query/cursor", limit, got)
		}
	}
	_, _, err := parse(map[string][]string{"limit": {"1", "2"}})
	if got := testkit.IssuePaths(err); !slices.Equal(got, []string{"/query/limit"}) {
		t.Errorf("repeated limit: issues at %v, want /query/limit", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ep_00000000-0000-7000-8000-000000000000", "200")
	f.Fuzz(func(t *testing.T, cursor, limit string) {
		after, n, err := parse(map[string][]string{"cursor": {cursor}, "limit": {limit}})
		if err == nil && (after != cursor || n < 1 || n > MaxLimit) {
			t.Errorf("%q and %q were read as %q and %d", cursor, limit, after, n)
		}
	})
}
