package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCatalogueListsEveryCodeOnce(t *testing.T) {
	seen := map[Code]bool{}
	for _, e := range Catalogue {
		if seen[e.Code] {
			t.Errorf("%s is listed twice", e.Code)
		}
		seen[e.Code] = true
		if http.StatusText(e.Status) == "" || e.Status < 400 {
			t.Errorf("%s has status %d, want an error status", e.Code, e.Status)
		}
		if e.Code.Status() != e.Status {
			t.Errorf("%s: Status() = %d, want %d", e.Code, e.Code.Status(), e.Status)
		}
		if e.Cause == "" || e.Fix == "" {
			t.Errorf("%s has no cause or fix", e.Code)
		}
	}
	if got := Code("UNKNOWN").Status(); got != http.StatusInternalServerError {
		t.Errorf("status %d of an unknown code, want 500", got)
	}
}

func TestCauseIsNotPublic(t *testing.T) {
	secret := errors.New("dial tcp 10.0.0.7:5432: refused")
	forbidden := New(Forbidden, "Not with %s.", "this key")
	for _, tt := range []struct {
		name    string
		err     error
		code    Code
		message string
	}{
		{"fault", forbidden, Forbidden, "Not with this key."},
		{"wrapped fault", fmt.Errorf("list endpoints: %w", forbidden), Forbidden, "Not with this key."},
		{"fault with a cause", forbidden.WithCause(secret), Forbidden, "Not with this key."},
		{"ordinary error", fmt.Errorf("list endpoints: %w", secret), Internal, ""},
		{"fault as the cause of an internal error", New(Internal, "Failed.").WithCause(forbidden), Internal, "Failed."},
		{"exceeded deadline", fmt.Errorf("query: %w", context.DeadlineExceeded), ServiceUnavailable, ""},
		{"cancelled request", fmt.Errorf("query: %w", context.Canceled), Internal, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := From(tt.err)
			if e.Code != tt.code {
				t.Errorf("code %s, want %s", e.Code, tt.code)
			}
			if tt.message != "" && e.Message != tt.message {
				t.Errorf("message %q, want %q", e.Message, tt.message)
			}
			if strings.Contains(e.Message, "10.0.0.7") {
				t.Errorf("the public message contains the cause: %q", e.Message)
			}
			if !errors.Is(e, tt.err) && !errors.Is(tt.err, e) {
				t.Error("the original error is lost")
			}
			if !Is(tt.err, tt.code) && !Is(e, tt.code) {
				t.Errorf("Is does not find %s", tt.code)
			}
		})
	}
	if Is(New(Internal, "Failed.").WithCause(forbidden), Forbidden) {
		t.Error("Is matches the code of the cause")
	}
	if Is(nil, Internal) || Is(io.EOF, Internal) {
		t.Error("Is matches an error without a code")
	}
}

func TestWithMethodsReturnCopies(t *testing.T) {
	base := New(NotFound, "Nothing here.")
	changed := base.WithDetails("details").WithCause(io.EOF).WithRetryAfter(time.Second)
	if base.Details != nil || base.Cause != nil || base.RetryAfter != 0 {
		t.Errorf("the original was changed: %+v", base)
	}
	if changed.Details != "details" || changed.RetryAfter != time.Second || !errors.Is(changed, io.EOF) {
		t.Errorf("incomplete copy: %+v", changed)
	}
	if got, want := changed.Error(), "NOT_FOUND: Nothing here.: EOF"; got != want {
		t.Errorf("logged as %q, want %q", got, want)
	}
	if got, want := base.Error(), "NOT_FOUND: Nothing here."; got != want {
		t.Errorf("logged as %q, want %q", got, want)
	}
}

func TestUnavailableHasRetryAfter(t *testing.T) {
	for _, e := range []*Error{Unavailable("The database", io.EOF), From(context.DeadlineExceeded)} {
		if e.Code.Status() != http.StatusServiceUnavailable || e.RetryAfter <= 0 || e.Cause == nil {
			t.Errorf("%v: status %d, retry after %s, cause %v; want 503 with a delay and a cause", e, e.Code.Status(), e.RetryAfter, e.Cause)
		}
	}
}

func TestMessageOfIssues(t *testing.T) {
	many := make([]Issue, 10_000)
	for i := range many {
		many[i] = Issue{Pointer("/list", i), IssueType, "Not a string."}
	}
	for name, tt := range map[string]struct {
		issues  []Issue
		listed  int
		message string
	}{
		"single issue":            {[]Issue{{"/query/limit", IssueTooLarge, "limit must be at most 100%."}}, 1, "/query/limit: limit must be at most 100%."},
		"issue of the whole body": {[]Issue{{"", IssueType, "Must be an object."}}, 1, "Must be an object."},
		"all are listed at once":  {many[:2], 2, "2 issues"},
		"number is limited":       {many, maxIssues, "100 issues or more"},
	} {
		var issues Issues
		if err := issues.Err(); err != nil {
			t.Errorf("without issues: %v", err)
		}
		for _, i := range tt.issues {
			issues.Add(i.Path, i.Code, "%s", i.Message)
		}
		e := From(issues.Err())
		list, _ := e.Details.([]Issue)
		if e.Code != Validation || !slices.Equal(list, tt.issues[:tt.listed]) || e.Message != tt.message && (len(tt.issues) == 1 || !strings.Contains(e.Message, tt.message)) {
			t.Errorf("%s: error %v with %d issues, want %s with %d and %q", name, e, len(list), Validation, tt.listed, tt.message)
		}
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
