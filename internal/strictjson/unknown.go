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

// Warning describes a member of a JSON object that has no effect.
type Warning struct {
	Path    string `json:"path"` // JSON Pointer
	Message string `json:"message"`
}

// String returns path and message.
func (w Warning) String() string { return w.Path + ": " + w.Message }

// MaxWarnings bounds the warnings about one value.
const MaxWarnings = 100

// UnknownMembers returns up to MaxWarnings warnings, one for each member of a body that the type
// of v, into which it is decoded, does not have. A struct with a field tagged "embed" has all
// members. hints maps names that clients use by mistake to the right ones.
func UnknownMembers(raw jsontext.Value, v any, hints map[string]string) []Warning {
	u := unknownMembers{allowOthers: true, hints: hints, types: map[reflect.Type]structType{}}
	u.walk(raw, reflect.TypeOf(v), "")
	return u.warnings
}

// UnnamedMembers is like UnknownMembers for the value at path, but includes the members that
// a field tagged "embed" collects.
func UnnamedMembers(raw jsontext.Value, v any, path string) []Warning {
	u := unknownMembers{types: map[reflect.Type]structType{}}
	u.walk(raw, reflect.TypeOf(v), path)
	return u.warnings
}

type unknownMembers struct {
	allowOthers bool // in a struct with a field tagged "embed"
	hints       map[string]string
	types       map[reflect.Type]structType
	warnings    []Warning
}

// structType holds the members of a struct, and whether it collects others.
type structType struct {
	fields         map[string]reflect.StructField
	collectsOthers bool
}

func (u *unknownMembers) structType(t reflect.Type) structType {
	s, ok := u.types[t]
	if !ok {
		s.fields = map[string]reflect.StructField{}
		s.collectsOthers = addFields(t, s.fields)
		u.types[t] = s
	}
	return s
}

func (u *unknownMembers) walk(raw jsontext.Value, t reflect.Type, path string) {
	switch {
	case len(u.warnings) == MaxWarnings:
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) || t == reflect.TypeFor[jsontext.Value]():
		// It may use any member.
	case t.Kind() == reflect.Pointer:
		u.walk(raw, t.Elem(), path)
	case t.Kind() == reflect.Slice && raw.Kind() == '[':
		for i, item := range Elements(raw) {
			u.walk(item, t.Elem(), fault.Pointer(path, i))
		}
	case t.Kind() == reflect.Struct:
		s := u.structType(t)
		if s.collectsOthers && u.allowOthers {
			return
		}
		for name, value := range Members(raw) {
			if len(u.warnings) == MaxWarnings {
				return
			}
			if field, ok := s.fields[name]; ok {
				u.walk(value, field.Type, fault.Pointer(path, name))
			} else {
				u.warnings = append(u.warnings, UnknownMember(path, name, s.fields, u.hints))
			}
		}
	}
}

// addFields adds a struct's fields by the names of their members, and reports whether
// the struct has a field tagged "embed".
func addFields(t reflect.Type, fields map[string]reflect.StructField) (collectsOthers bool) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			collectsOthers = addFields(f.Type, fields) || collectsOthers
		case options == "embed":
			collectsOthers = true
		case name != "" && name != "-":
			fields[name] = f
		}
	}
	return collectsOthers
}

// UnknownMember returns the warning for a member of the object at path whose name is
// not in known. It suggests a similar name, if there is one.
func UnknownMember[T any](path, name string, known map[string]T, hints map[string]string) Warning {
	message := fmt.Sprintf("%q has no effect.", Shorten(name))
	similar := hints[name]
	if _, ok := known[similar]; !ok {
		similar = Similar(name, slices.Sorted(maps.Keys(known)))
	}
	if similar != "" {
		message += fmt.Sprintf(" Did you mean %q?", similar)
	}
	return Warning{fault.Pointer(path, Shorten(name)), message}
}

// Shorten cuts a member's name that is too long for a message.
func Shorten(name string) string {
	const longest = 128 // bytes
	if len(name) <= longest {
		return name
	}
	return strings.ToValidUTF8(name[:longest], "") + "…"
}

// Similar returns the known name that is most similar to name, or "".
func Similar(name string, known []string) string {
	best, fewest := "", min(3, len(name)/2+1) // a name with more edits is a different word
	for _, candidate := range known {
		if n := distance(strings.ToLower(name), strings.ToLower(candidate)); n < fewest {
			best, fewest = candidate, n
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b in bytes. It does not
// compare names over 64 bytes.
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

// Members returns the members of a JSON object, in their order, up to the first
// syntax error. Other values have none. A value is valid until the next iteration.
func Members(raw jsontext.Value) iter.Seq2[string, jsontext.Value] {
	return func(yield func(string, jsontext.Value) bool) {
		dec := open(raw, '{')
		for dec != nil && dec.PeekKind() == '"' {
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

// Elements returns the elements of a JSON array and their positions, up to the first
// syntax error. Other values have none. A value is valid until the next iteration.
func Elements(raw jsontext.Value) iter.Seq2[int, jsontext.Value] {
	return func(yield func(int, jsontext.Value) bool) {
		dec := open(raw, '[')
		for i := 0; dec != nil && dec.PeekKind() != ']'; i++ {
			value, err := dec.ReadValue()
			if err != nil || !yield(i, value) {
				return
			}
		}
	}
}

// open returns a decoder after the bracket that opens a value, or nil if the value is of
// another kind.
func open(raw jsontext.Value, bracket jsontext.Kind) *jsontext.Decoder {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true)) // Decode rejects them
	if t, err := dec.ReadToken(); err != nil || t.Kind() != bracket {
		return nil
	}
	return dec
}
