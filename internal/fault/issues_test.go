package fault

import (
	"strings"
	"testing"
)

func TestErrIsNilWithoutIssues(t *testing.T) {
	var issues Issues
	if err := issues.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
}

func TestSingleIssueIsUsedAsMessage(t *testing.T) {
	var issues Issues
	issues.Add("/query/limit", IssueTooLarge, "limit must be at most %d.", 100)
	e := From(issues.Err())
	if e.Code != Validation || e.Message != "/query/limit: limit must be at most 100." {
		t.Errorf("error %v, want %s with the issue as message", e, Validation)
	}
	want := Issue{"/query/limit", IssueTooLarge, "limit must be at most 100."}
	if list, ok := e.Details.([]Issue); !ok || len(list) != 1 || list[0] != want {
		t.Errorf("details %v, want [%v]", e.Details, want)
	}
}

func TestIssueOfTheWholeBodyHasNoPath(t *testing.T) {
	var issues Issues
	issues.Add("", IssueType, "Must be an object.")
	if e := From(issues.Err()); e.Message != "Must be an object." {
		t.Errorf("message %q, want it without a path", e.Message)
	}
}

func TestAllIssuesAreListedAtOnce(t *testing.T) {
	var issues Issues
	issues.Add("/a", IssueRequired, "a is missing.")
	issues.Add("/b", IssueType, "b is not a number.")
	e := From(issues.Err())
	if list, ok := e.Details.([]Issue); !ok || len(list) != 2 || list[0].Path != "/a" || list[1].Path != "/b" {
		t.Errorf("details %v, want the issues of /a and /b", e.Details)
	}
	if !strings.Contains(e.Message, "2 issues") {
		t.Errorf("message %q does not have the number of issues", e.Message)
	}
}

func TestNumberOfListedIssuesIsLimited(t *testing.T) {
	var issues Issues
	for i := range 10_000 {
		issues.Add(Pointer("/list", i), IssueType, "Not a string.")
	}
	e := From(issues.Err())
	if n := len(e.Details.([]Issue)); n != maxIssues {
		t.Errorf("%d issues listed, want %d", n, maxIssues)
	}
	if !strings.Contains(e.Message, "100 issues or more") {
		t.Errorf("message %q does not say that there are more issues", e.Message)
	}
}

func TestFullIssuesSkipFurtherChecks(t *testing.T) {
	var issues Issues
	for i := range maxIssues {
		if issues.Full() || issues.Has("/other") {
			t.Fatalf("full after %d issues, want %d", i, maxIssues)
		}
		issues.Add(Pointer("/list", i), IssueType, "Not a string.")
	}
	if !issues.Full() || !issues.Has("/other") {
		t.Errorf("not full after %d issues", maxIssues)
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
