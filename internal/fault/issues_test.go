package fault

import (
	"strings"
	"testing"
)

func TestNoIssueIsNoError(t *testing.T) {
	var issues Issues
	if err := issues.Err(); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestSingleIssueIsTheMessage(t *testing.T) {
	var issues Issues
	issues.Add("/query/limit", IssueTooLarge, "limit is %d at the most.", 100)
	e := From(issues.Err())
	if e.Code != Validation || e.Message != "/query/limit: limit is 100 at the most." {
		t.Errorf("got %v", e)
	}
	want := Issue{"/query/limit", IssueTooLarge, "limit is 100 at the most."}
	if list, ok := e.Details.([]Issue); !ok || len(list) != 1 || list[0] != want {
		t.Errorf("details %v, want [%v]", e.Details, want)
	}
}

func TestIssueOfTheWholeBodyHasNoPlaceToName(t *testing.T) {
	var issues Issues
	issues.Add("", IssueType, "This must be an object.")
	if e := From(issues.Err()); e.Message != "This must be an object." {
		t.Errorf("message %q", e.Message)
	}
}

func TestAllIssuesAreListedAtOnce(t *testing.T) {
	var issues Issues
	issues.Add("/a", IssueRequired, "a is missing.")
	issues.Add("/b", IssueType, "b is no number.")
	e := From(issues.Err())
	if list, ok := e.Details.([]Issue); !ok || len(list) != 2 || list[0].Path != "/a" || list[1].Path != "/b" {
		t.Errorf("details %v", e.Details)
	}
	if !strings.Contains(e.Message, "2 issues") {
		t.Errorf("message %q does not count them", e.Message)
	}
}

func TestHostileBodyCannotGrowTheAnswer(t *testing.T) {
	var issues Issues
	for i := range 10_000 {
		issues.Add(Pointer("/list", i), IssueType, "Not a string.")
	}
	e := From(issues.Err())
	if n := len(e.Details.([]Issue)); n != maxIssues {
		t.Errorf("%d issues listed, want %d", n, maxIssues)
	}
	if !strings.Contains(e.Message, "10000") {
		t.Errorf("message %q hides how many there were", e.Message)
	}
}

func TestPointerEscapesItsToken(t *testing.T) {
	for _, tt := range []struct {
		base  string
		token any
		want  string
	}{
		{"", "name", "/name"},
		{"/list", 3, "/list/3"},
		{"/a", "b/c", "/a/b~1c"},
		{"/a", "b~c", "/a/b~0c"},
		{"/a", "~1", "/a/~01"},
		{"/a", "", "/a/"},
	} {
		if got := Pointer(tt.base, tt.token); got != tt.want {
			t.Errorf("Pointer(%q, %v) = %q, want %q", tt.base, tt.token, got, tt.want)
		}
	}
}
