package fault

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Issue is one thing wrong with a request. Path is a JSON Pointer: into the
// body, or /query/<name> and /header/<name> for what stands outside it.
type Issue struct {
	Path    string `json:"path"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// String is the issue in one line. Of a body as a whole the path is empty.
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

// maxIssues bounds the answer to a hostile body; the rest is counted.
const maxIssues = 100

// Issues collects everything wrong with a request, so that a caller can mend
// all of it at once. The zero value is ready to use.
type Issues struct {
	list []Issue
	more int
}

// Add notes one issue.
func (is *Issues) Add(path, code, format string, args ...any) {
	if len(is.list) >= maxIssues {
		is.more++
		return
	}
	is.list = append(is.list, Issue{path, code, fmt.Sprintf(format, args...)})
}

// Has tells whether something is noted at path or above it, so that a value
// of a wrong type is not reported as missing or out of bounds too.
func (is *Issues) Has(path string) bool {
	return slices.ContainsFunc(is.list, func(i Issue) bool {
		rest, above := strings.CutPrefix(path, i.Path)
		return above && (rest == "" || rest[0] == '/')
	})
}

// Missing records that a required value is missing, unless Has(path).
func (is *Issues) Missing(path, format string, args ...any) {
	if !is.Has(path) {
		is.Add(path, IssueRequired, format, args...)
	}
}

// CheckOneOf notes a value that is none of those allowed, unless it is covered.
func CheckOneOf[S ~string](is *Issues, path string, value S, allowed []S) {
	if slices.Contains(allowed, value) || is.Has(path) {
		return
	}
	is.Add(path, IssueValue, "This must be one of %s.", Join(allowed))
}

// Join lists names in a text, separated by commas.
func Join[S ~string](names []S) string {
	var b strings.Builder
	for i, name := range names {
		b.WriteString(strings.Repeat(", ", min(i, 1)) + string(name))
	}
	return b.String()
}

// CheckRange notes a number that is out of its bounds, unless it is covered.
func CheckRange[N int64 | float64](is *Issues, path string, n, least, most N) {
	switch {
	case is.Has(path):
	case n < least:
		is.Add(path, IssueTooSmall, "This must be a number from %v to %v.", least, most)
	case n > most:
		is.Add(path, IssueTooLarge, "This must be a number from %v to %v.", least, most)
	}
}

// QueryValue reads a query parameter, and notes one that is given more than once.
func (is *Issues) QueryValue(params map[string][]string, name string) (value string, given bool) {
	switch values := params[name]; len(values) {
	case 0:
		return "", false
	case 1:
		return values[0], true
	default:
		is.Add("/query/"+name, IssueTooMany, "Give %s once.", name)
		return "", false
	}
}

// List returns what was noted.
func (is *Issues) List() []Issue { return is.list }

// Err is nil when nothing was noted, else one VALIDATION_ERROR with all issues.
func (is *Issues) Err() error {
	switch n := len(is.list) + is.more; n {
	case 0:
		return nil
	case 1:
		return New(Validation, "%s", is.list[0]).WithDetails(is.list)
	default:
		return New(Validation, "The request has %d issues; details lists them.", n).WithDetails(is.list)
	}
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer appends one reference token to a JSON Pointer, escaped as RFC 6901 asks.
func Pointer(base string, token any) string {
	if index, is := token.(int); is {
		return base + "/" + strconv.Itoa(index)
	}
	return base + "/" + pointerEscaper.Replace(fmt.Sprint(token))
}

// CheckName notes what keeps a text from being a name that people read in lists
// and logs. An empty one passes.
func (is *Issues) CheckName(path, name string, longest int) {
	switch {
	case utf8.RuneCountInString(name) > longest:
		is.Add(path, IssueTooLong, "A name has %d characters at the most.", longest)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		is.Add(path, IssueForbidden, "A name holds no control characters.")
	}
}
