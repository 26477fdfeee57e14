package libraries

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// TestScenarios plays all scenarios with all libraries.
func TestScenarios(t *testing.T) {
	text, err := os.ReadFile("testdata/scenarios.txt")
	testkit.Must(t, err)
	for _, language := range []string{"go", "python", "node"} {
		t.Run(language, func(t *testing.T) {
			if language != "go" { // those of Go end with a search for goroutines
				t.Parallel()
			}
			l := startLibrary(t, language)
			for _, scenario := range strings.Split(string(text), "\n\n") {
				title, steps, found := strings.Cut(scenario, "\n  ")
				title = title[strings.LastIndex(title, "\n")+1:]
				if only, rest, is := strings.Cut(strings.TrimPrefix(title, "["), "] "); is {
					title, found = rest, found && slices.Contains(strings.Fields(only), language)
				}
				values := []string{""}
				if list, rest, is := strings.Cut(strings.TrimPrefix(steps, "each "), "\n"); is && strings.HasPrefix(steps, "each ") {
					steps = rest
					if values = strings.Split(list, " | "); len(values) == 1 {
						values = strings.Fields(list)
					}
				}
				for _, value := range values {
					if found {
						t.Run(title+" "+value, func(t *testing.T) { newScript(t, l).play(strings.ReplaceAll(steps, "$each", value)) })
					}
				}
			}
		})
	}
}

// option cuts a word off that begins with a mark.
func option(text, mark string) (value, rest string) {
	if !strings.HasPrefix(text, mark) {
		return "", text
	}
	value, rest, _ = strings.Cut(text[1:], " ")
	return value, rest
}

func (s *script) expand(text string) string {
	for name, value := range s.variables {
		text = strings.ReplaceAll(text, "$"+name, value)
	}
	return text
}

func (s *script) value(text string) (v any) {
	s.t.Helper()
	if text != "" {
		testkit.Must(s.t, json.Unmarshal([]byte(s.expand(text)), &v))
	}
	return v
}

func (s *script) object(text string) object {
	s.t.Helper()
	o, _ := s.value(text).(object)
	if o == nil {
		o = object{}
	}
	return o
}

// matches reports whether a value has the wanted members. It sets the variables that are new.
func (s *script) matches(got, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case object:
		members, is := got.(object)
		for name, value := range want {
			if list, _ := members[name].([]any); value == nil && members[name] != nil && (list == nil || len(list) > 0) {
				return false
			}
			is = is && s.matches(members[name], value)
		}
		return is
	case []any:
		list, is := got.([]any)
		for i := range want {
			is = is && len(list) == len(want) && s.matches(list[i], want[i])
		}
		return is
	case string:
		if name, isVariable := strings.CutPrefix(want, "$"); isVariable {
			text, is := got.(string)
			s.variables[name] = text
			return is && text != ""
		}
	}
	return got == want
}
