// Package strictjson owns the reading of JSON from outside: bytes that are not
// one sane JSON value are MALFORMED_JSON, and every value of a wrong type is
// noted with its place, so that a caller can mend all of it at once.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

// maxDepth is far beyond what any provider nests, and far below what costs
// stack in the parsers downstream.
const maxDepth = 128

// Decode reads data, exactly one JSON value, into v. The error is a
// MALFORMED_JSON fault. Values of a wrong type are noted below the pointer base
// and left zero, but not nil, so that a check for presence stays quiet about
// them. A null counts as absent.
func Decode(data []byte, v any, base string, issues *fault.Issues) error {
	if tooDeep(data) {
		return fault.New(fault.MalformedJSON, "The JSON is nested more than %d levels deep.", maxDepth)
	}
	err := json.Unmarshal(data, v)
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		// Only bad input pays for reading a second time, more slowly.
		reflect.ValueOf(v).Elem().SetZero()
		err = json.Unmarshal(data, v, json.WithUnmarshalers(noting(base, issues)))
	}
	if err != nil {
		return fault.New(fault.MalformedJSON, "The body is not one well-formed JSON value: %s.", problem(err)).WithCause(err)
	}
	return nil
}

// problem says what stops the bytes from being JSON, without quoting them.
func problem(err error) string {
	var syntax *jsontext.SyntacticError
	switch {
	case !errors.As(err, &syntax):
		return "it breaks off"
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Sprintf("an object has the same name twice, at byte %d", syntax.ByteOffset)
	default:
		return fmt.Sprintf("it breaks at byte %d", syntax.ByteOffset)
	}
}

// tooDeep counts brackets outside strings. On bytes that are not JSON it may
// be wrong either way; those are refused as malformed all the same.
func tooDeep(data []byte) bool {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = closing(data, i)
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// closing is where the string ends whose opening quote is at open, or the end of
// data. Most of a body is text: it is worth being quick about.
func closing(data []byte, open int) int {
	for i := open + 1; ; i++ {
		next := bytes.IndexByte(data[i:], '"')
		if next < 0 {
			return len(data)
		}
		i += next
		slashes := 0
		for data[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
}

// noting reads like json does, but notes a value of a wrong type and goes on.
func noting(base string, issues *fault.Issues) *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
		switch v.(type) {
		case json.UnmarshalerFrom, json.Unmarshaler:
			return errors.ErrUnsupported // the methods decide
		}
		to := reflect.ValueOf(v).Elem()
		kind := dec.PeekKind()
		want, fits := expectation(to.Kind(), kind)
		if fits && (kind != '0' || want == "") {
			return errors.ErrUnsupported
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if fits && setNumber(to, raw) {
			return nil
		}
		issues.Add(base+string(dec.StackPointer()), fault.IssueType, "This must be %s.", want)
		return nil
	})
}

// setNumber takes a number that the field can hold without rounding an integer.
func setNumber(to reflect.Value, raw jsontext.Value) bool {
	if to.Kind() == reflect.Float64 {
		f, ok := Number(raw)
		to.SetFloat(f)
		return ok
	}
	n, ok := Integer(raw)
	to.SetInt(n)
	return ok
}

// expectation tells what a Go kind is called in JSON and whether a value of the
// given kind fits it.
func expectation(to reflect.Kind, from jsontext.Kind) (want string, fits bool) {
	if from == 'n' {
		return "", true
	}
	switch to {
	case reflect.String:
		return "a string", from == '"'
	case reflect.Bool:
		return "a boolean", from == 't' || from == 'f'
	case reflect.Int64:
		return "an integer", from == '0'
	case reflect.Float64:
		return "a number", from == '0'
	case reflect.Struct, reflect.Map:
		return "an object", from == '{'
	case reflect.Slice:
		return "an array", from == '['
	default:
		return "", true
	}
}

// Present tells whether a raw member was given as something other than null.
func Present(raw jsontext.Value) bool { return len(raw) > 0 && raw.Kind() != 'n' }

// CheckObject notes a raw member of the object at path that is neither an object nor
// absent, and drops a null.
func CheckObject(raw *jsontext.Value, path, field string, issues *fault.Issues) {
	switch {
	case !Present(*raw):
		*raw = nil
	case raw.Kind() != '{':
		issues.Add(path+field, fault.IssueType, "This must be an object.")
	}
}
