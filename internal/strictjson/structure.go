package strictjson

import (
	"bytes"
	"cmp"
	"math"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

const (
	// maxDepth bounds the nesting, because recursive parsers need stack for each level.
	maxDepth = 128
	// maxItems bounds the members of each object, whose names are stored to find
	// duplicates, and the elements of each array that is decoded into a Go value, because
	// a short JSON text can become a large value. A body of 1 MiB reaches it only with items of
	// less than 32 bytes. The tag "max" of a field is a lower bound that the caller checks after
	// decoding: longer arrays that are rejected here get the same message. An array in a
	// jsontext.Value needs no more memory than its text and has no bound.
	maxItems = 32_768
)

// checkStructure checks the limits before data is decoded into v. It counts brackets
// and commas outside strings, so it may return nil for invalid JSON, which the decoder
// rejects.
func checkStructure(data []byte, v any, base string, issues *fault.Issues) error {
	var commas [maxDepth + 1]int32 // of the open objects and arrays
	depth, isLong := 0, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i)
		case '{', '[':
			if depth++; depth > maxDepth {
				return fault.New(fault.MalformedJSON, "The JSON has more than %d nesting levels. Flatten it.", maxDepth)
			}
			commas[depth] = 0
		case ',':
			commas[depth]++
			isLong = isLong || commas[depth] >= maxItems
		case '}', ']':
			depth = max(0, depth-1)
		}
	}
	if !isLong {
		return nil
	}
	s := sizer{dec: jsontext.NewDecoder(bytes.NewReader(data)), base: base, issues: issues}
	err := s.walk(reflect.TypeOf(v), maxItems)
	end := s.dec.InputOffset()
	if err == nil && len(bytes.Trim(data[end:], " \t\r\n")) > 0 {
		err = &jsontext.SyntacticError{ByteOffset: end} // something follows the value
	}
	switch {
	case err != nil:
		return malformed(err)
	case s.found:
		return issues.Err()
	}
	return nil
}

// sizer looks for objects and arrays that are too long.
type sizer struct {
	dec    *jsontext.Decoder
	base   string // path of the whole value
	issues *fault.Issues
	found  bool // an issue was added
}

// walk reads a value that is decoded into a t, or stays raw if t is nil. An array that
// is decoded has at most limit elements.
func (s *sizer) walk(t reflect.Type, limit int) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind, what := s.dec.PeekKind(), "items"
	// The type and the limit of a member or element: by default, it stays raw.
	inside := func(string) (reflect.Type, int) { return nil, maxItems }
	switch {
	case kind != '{' && kind != '[':
		return s.dec.SkipValue()
	case t == nil || t == reflect.TypeFor[jsontext.Value]():
		limit = math.MaxInt
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()): // decodes the raw items itself
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
		inside = func(string) (reflect.Type, int) { return t.Elem(), maxItems }
	case t.Kind() == reflect.Struct:
		fields := map[string]reflect.StructField{}
		addFields(t, fields)
		inside = func(name string) (reflect.Type, int) {
			lower, _ := strconv.Atoi(fields[name].Tag.Get("max"))
			return fields[name].Type, cmp.Or(lower, maxItems)
		}
	}
	if kind == '{' {
		limit, what = maxItems, "members"
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return err
	}
	for n := 0; !isEnd(s.dec.PeekKind()); n++ {
		var name string
		if kind == '{' {
			token, err := s.dec.ReadToken()
			if err != nil {
				return err
			}
			name = token.String()
		}
		if n == limit {
			s.found = true
			s.issues.Add(s.base+string(s.dec.StackPointer().Parent()), fault.IssueTooMany, "At most %d %s are allowed. Send fewer.", limit, what)
		}
		if err := s.walk(inside(name)); err != nil {
			return err
		}
	}
	_, err := s.dec.ReadToken()
	return err
}

func isEnd(k jsontext.Kind) bool { return k == '}' || k == ']' }

// stringEnd returns the position of the quote that closes the string at open, or
// len(data). It uses IndexByte for speed, because most of a body is text.
func stringEnd(data []byte, open int) int {
	for i := open + 1; ; i++ {
		next := bytes.IndexByte(data[i:], '"')
		if next < 0 {
			return len(data)
		}
		i += next
		backslashes := 0
		for data[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 { // the quote is not escaped
			return i
		}
	}
}
