package fault

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Issue is one problem in a request. Path is a JSON Pointer into the body, or
// /query/<name> or /header/<name>.
type Issue struct {
	Path    string `json:"path"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// String returns path and message. The path of the whole body is empty.
func (i Issue) String() string { return strings.TrimPrefix(i.Path+": "+i.Message, ": ") }

// Codes of an Issue.
const (
	IssueRequired  = "required"
	IssueType      = "invalid_type"
	IssueValue     = "invalid_value"
	IssueTooSmall  = "too_small"
	IssueTooLarge  = "too_large"
	IssueTooLong   = "too_long"
	IssueTooMany   = "too_many"
	IssueUnknown   = "unknown_key"
	IssueForbidden = "forbidden_character"
)

// maxIssues limits the details of an error. Further issues are not recorded.
const maxIssues = 100

// Issues collects the problems in a request, so that a client can fix all of
// them at once. The zero value is ready to use.
type Issues struct{ list []Issue }

// Add records an issue.
func (issues *Issues) Add(path, code, format string, args ...any) {
	if issues.Full() {
		return
	}
	issues.list = append(issues.list, Issue{path, code, fmt.Sprintf(format, args...)})
}

// Full reports whether further issues are not recorded.
func (issues *Issues) Full() bool { return len(issues.list) >= maxIssues }

// Check records an issue unless ok.
func (issues *Issues) Check(ok bool, path, code, format string, args ...any) {
	if !ok {
		issues.Add(path, code, format, args...)
	}
}

// Has reports whether the value at path, or a value that contains it, has an issue already. Such a
// value was not decoded and is zero: nobody needs to read that it is missing or out of range too.
// Has also returns true if issues is full, because further checks have no effect.
func (issues *Issues) Has(path string) bool {
	return issues.Full() || slices.ContainsFunc(issues.list, func(i Issue) bool {
		return path == i.Path || strings.HasPrefix(path, i.Path) && path[len(i.Path)] == '/'
	})
}

// Missing records that a required value is missing, unless Has(path).
func (issues *Issues) Missing(path, format string, args ...any) {
	if !issues.Has(path) {
		issues.Add(path, IssueRequired, format, args...)
	}
}

// CheckOneOf records a value that is not allowed, unless issues.Has(path).
func CheckOneOf[S ~string](issues *Issues, path string, value S, allowed []S) {
	if !slices.Contains(allowed, value) && !issues.Has(path) {
		issues.Add(path, IssueValue, "Must be one of %s.", Join(allowed))
	}
}

// Join joins names with commas.
func Join[S ~string](names []S) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = string(name)
	}
	return strings.Join(list, ", ")
}

// CheckRange records a number that is out of range, unless issues.Has(path).
func CheckRange[N int64 | float64](issues *Issues, path string, n, lowest, highest N) {
	if n >= lowest && n <= highest || issues.Has(path) {
		return
	}
	code := IssueTooLarge
	if n < lowest {
		code = IssueTooSmall
	}
	issues.Add(path, code, "Must be a number from %v to %v.", lowest, highest)
}

// ParseQuery parses a query string. If that is malformed, it records an issue and returns the
// valid parameters.
func (issues *Issues) ParseQuery(raw string) url.Values {
	values, err := url.ParseQuery(raw)
	issues.Check(err == nil, "/query", IssueValue, "The query string is malformed. Percent-encode special characters, such as %%25 for a percent sign.")
	return values
}

// QueryValue returns a query parameter. It records an issue for a repeated parameter, and for
// one without a value: neither may be mistaken for an absent one, which often means all.
func (issues *Issues) QueryValue(params map[string][]string, name string) (value string, given bool) {
	switch values := params[name]; {
	case len(values) > 1:
		issues.Add("/query/"+name, IssueTooMany, "Send %s only once.", name)
	case len(values) == 1 && values[0] == "":
		issues.Add("/query/"+name, IssueValue, "%s has no value. Omit it, or send one.", name)
	case len(values) == 1:
		return values[0], true
	}
	return "", false
}

// CheckName records a name that is too long or not printable.
func (issues *Issues) CheckName(path, name string, maxLength int) {
	switch {
	case utf8.RuneCountInString(name) > maxLength:
		issues.Add(path, IssueTooLong, "Must have at most %d characters.", maxLength)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		issues.Add(path, IssueForbidden, "Must not contain control characters.")
	}
}

// List returns the recorded issues.
func (issues *Issues) List() []Issue { return issues.list }

// Err returns a VALIDATION_ERROR with all issues, or nil if there are none.
func (issues *Issues) Err() error {
	switch n := len(issues.list); n {
	case 0:
		return nil
	case 1:
		return New(Validation, "%s", issues.list[0]).WithDetails(issues.list)
	case maxIssues:
		return New(Validation, "The request has %d issues or more. See details for the first ones.", n).WithDetails(issues.list)
	default:
		return New(Validation, "The request has %d issues. See details.", n).WithDetails(issues.list)
	}
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer appends a reference token to a JSON Pointer, escaped as in RFC 6901.
func Pointer(base string, token any) string {
	return base + "/" + pointerEscaper.Replace(fmt.Sprint(token))
}
