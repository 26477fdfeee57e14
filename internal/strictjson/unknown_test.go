package strictjson

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

type profile struct {
	Sources  []string       `json:"sources"`
	Policies []policy       `json:"policies"`
	Free     jsontext.Value `json:"free"`
	Default  *policy        `json:"default"`
	Other    jsontext.Value `json:",embed"`
}

type policy struct {
	AllowedTargets []string `json:"allowedTargets"`
}

func TestUnknownMembersAreReportedWithSuggestion(t *testing.T) {
	const value = `{"sources":["a"],"Policies":1,"policies":[{"allowedTarget":[]},{"allowedTargets":["x"],"why":1},7],"free":{"any":1},"default":{"a/b":1},"rules":[]}`
	for allowEmbedded, want := range map[bool][]string{
		false: {
			`/Policies: "Policies" has no effect. Did you mean "policies"?`,
			`/policies/0/allowedTarget: "allowedTarget" has no effect. Did you mean "allowedTargets"?`,
			`/policies/1/why: "why" has no effect.`,
			`/default/a~1b: "a/b" has no effect.`,
			`/rules: "rules" has no effect. Did you mean "policies"?`,
		},
		true: nil,
	} {
		var got []string
		for _, w := range UnknownMembers(jsontext.Value(value), profile{}, "", allowEmbedded, map[string]string{"rules": "policies"}) {
			got = append(got, w.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("allowEmbedded %v: warnings\n%s\nwant\n%s", allowEmbedded, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// objectWith returns an object with n members.
func objectWith(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// Each suggestion compares a name with all known names.
func TestWarningsAreBounded(t *testing.T) {
	for name, value := range map[string]string{
		"members": objectWith(1000),
		"items":   `{"policies":[` + strings.Repeat(`{"x":1},`, 1000) + `{}]}`,
	} {
		if got := len(UnknownMembers(jsontext.Value(value), profile{}, "", false, nil)); got != MaxWarnings {
			t.Errorf("%s: %d warnings, want %d", name, got, MaxWarnings)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"action", "actions", 1}, {"kitten", "sitting", 3}, {"abc", "acb", 2},
		{strings.Repeat("a", 65), "a", 64},
	} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance of %q and %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
