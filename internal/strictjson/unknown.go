package strictjson

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

// Warning describes a member that has no effect.
type Warning struct {
	Path    string `json:"path"` // JSON Pointer
	Message string `json:"message"`
}

// String returns path and message.
func (w Warning) String() string { return w.Path + ": " + w.Message }

// Unread returns a warning for each member of a JSON value that is not a field of
// v, which has the type that the value is decoded into. If forwarded, fields
// tagged "embed" count as read: their members are passed on. The map hints
// maps names that clients confuse to the ones they mean.
func Unread(raw jsontext.Value, v any, path string, forwarded bool, hints map[string]string) []Warning {
	u := unread{forwarded: forwarded, hints: hints}
	u.walk(raw, reflect.TypeOf(v), path)
	return u.warnings
}

type unread struct {
	forwarded bool
	hints     map[string]string
	warnings  []Warning
}

func (u *unread) walk(raw jsontext.Value, t reflect.Type, path string) {
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) || t == reflect.TypeFor[jsontext.Value]():
	case t.Kind() == reflect.Pointer:
		u.walk(raw, t.Elem(), path)
	case t.Kind() == reflect.Slice && raw.Kind() == '[':
		var items []jsontext.Value
		_ = json.Unmarshal(raw, &items) // cannot fail: raw is a decoded array
		for i, item := range items {
			u.walk(item, t.Elem(), fault.Pointer(path, i))
		}
	case t.Kind() == reflect.Struct:
		fields := map[string]reflect.Type{}
		if embeds := collectFields(t, fields); embeds && u.forwarded {
			return
		}
		for name, value := range Members(raw) {
			at := fault.Pointer(path, name)
			if field, ok := fields[name]; ok {
				u.walk(value, field, at)
			} else {
				u.warnings = append(u.warnings, NotRead(at, name, slices.Sorted(maps.Keys(fields)), u.hints))
			}
		}
	}
}

// collectFields adds the names and types of a struct's members. It reports whether
// the struct has a field that keeps unknown members.
func collectFields(t reflect.Type, fields map[string]reflect.Type) (embeds bool) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			embeds = collectFields(f.Type, fields) || embeds
		case options == "embed":
			embeds = true
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return embeds
}

// NotRead returns the warning for a member that is not one of the known ones. It
// suggests a known one if the names are similar.
func NotRead(path, name string, known []string, hints map[string]string) Warning {
	message := fmt.Sprintf("%q is not read.", name)
	if similar := suggest(name, known, hints); similar != "" {
		message += fmt.Sprintf(" Did you mean %q?", similar)
	}
	return Warning{path, message}
}

// suggest returns the known name that is most similar to name, or "".
func suggest(name string, known []string, hints map[string]string) string {
	if hint := hints[name]; slices.Contains(known, hint) {
		return hint
	}
	best, fewest := "", min(3, len(name)/2+1) // more edits make another word
	for _, candidate := range known {
		if n := distance(strings.ToLower(name), strings.ToLower(candidate)); n < fewest {
			best, fewest = candidate, n
		}
	}
	return best
}

// distance returns the number of bytes to insert, delete or replace to turn a
// into b. It does not compare long names.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Members returns the members of a decoded object. Another value has none.
func Members(raw jsontext.Value) iter.Seq2[string, jsontext.Value] {
	return func(yield func(string, jsontext.Value) bool) {
		dec := jsontext.NewDecoder(bytes.NewReader(raw))
		if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
			return
		}
		for dec.PeekKind() == '"' {
			name, err := dec.ReadToken()
			if err != nil {
				return
			}
			key := name.String()
			value, err := dec.ReadValue()
			if err != nil || !yield(key, value) {
				return
			}
		}
	}
}
