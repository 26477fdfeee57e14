// Package strictjson decodes JSON from clients. It rejects invalid JSON with
// MALFORMED_JSON. It collects all values of the wrong type, with their paths, so
// that a client can fix them at once.
package strictjson

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

// Decode decodes exactly one JSON value into v. The error is MALFORMED_JSON, or
// VALIDATION_ERROR if an array or object is too long, which is also in issues.
//
// A value of the wrong type is added to issues, with a path that starts with base.
// Its field is left zero; a pointer field points to zero, so that the value does
// not count as missing. A null counts as absent. Once issues is full, the rest of a
// value with a type error is left zero, with all members of the right type.
func Decode(data []byte, v any, base string, issues *fault.Issues) error {
	if err := checkStructure(data, v, base, issues); err != nil {
		return err
	}
	return unmarshal(data, v, base, issues)
}

// DecodeKnown decodes a whole body like Decode. It also reports whether every member of the
// body has a field in v. If not, UnknownMembers lists the others.
func DecodeKnown(data []byte, v any, issues *fault.Issues) (known bool, err error) {
	if err := checkStructure(data, v, "", issues); err != nil {
		return false, err
	}
	if json.Unmarshal(data, v, json.RejectUnknownMembers(true)) == nil {
		return true, nil
	}
	reflect.ValueOf(v).Elem().SetZero()
	return false, unmarshal(data, v, "", issues)
}

func unmarshal(data []byte, v any, base string, issues *fault.Issues) error {
	err := json.Unmarshal(data, v)
	if _, ok := errors.AsType[*json.SemanticError](err); ok {
		// Decode again to record all type errors. This is slower, but only needed for invalid input.
		reflect.ValueOf(v).Elem().SetZero()
		err = json.Unmarshal(data, v, json.WithUnmarshalers(recordTypeErrors(base, issues)))
	}
	// A type's own method has rejected a value. A syntax error after it would matter more.
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok && jsontext.Value(data).IsValid() {
		issues.Add(base+string(semantic.JSONPointer), fault.IssueType, "Has the wrong type or form.")
		return nil
	}
	if err != nil {
		return malformed(err)
	}
	return nil
}

// malformed describes a syntax error without quoting the input.
func malformed(err error) error {
	problem := "unexpected end"
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		what := "syntax error"
		if errors.Is(err, jsontext.ErrDuplicateName) {
			what = "duplicate name"
		}
		problem = fmt.Sprintf("%s at byte %d", what, syntax.ByteOffset)
	}
	return fault.New(fault.MalformedJSON, "Invalid JSON: %s.", problem).WithCause(err)
}

// recordTypeErrors returns unmarshalers that add values of the wrong type to
// issues and continue. When issues is full, they only check the syntax.
func recordTypeErrors(base string, issues *fault.Issues) *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
		if issues.Full() {
			return dec.SkipValue()
		}
		switch v.(type) {
		case json.UnmarshalerFrom, json.Unmarshaler:
			return errors.ErrUnsupported // the method of the type checks the value
		}
		field := reflect.ValueOf(v).Elem()
		kind := dec.PeekKind()
		want, checked := jsonTypes[field.Kind()]
		fits := kind == 'n' || strings.IndexByte(want.kinds, byte(kind)) >= 0
		if !checked || fits && kind != '0' {
			return errors.ErrUnsupported // decode the value as usual
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if fits && setNumber(field, raw) {
			return nil
		}
		issues.Add(base+string(dec.StackPointer()), fault.IssueType, "Must be %s.", want.name)
		return nil
	})
}

// setNumber sets a field of kind Float64 or Int64 to a number. It returns false if the number
// is out of range, or has a fraction and the field does not.
func setNumber(field reflect.Value, raw jsontext.Value) bool {
	if field.Kind() == reflect.Float64 {
		f, ok := Number(raw)
		field.SetFloat(f)
		return ok
	}
	n, ok := Integer(raw)
	field.SetInt(n)
	return ok
}

// jsonTypes maps a Go kind to its JSON type: the name of the type, and the
// jsontext.Kind bytes of its values.
var jsonTypes = map[reflect.Kind]struct{ name, kinds string }{
	reflect.String: {"a string", `"`}, reflect.Bool: {"a boolean", "tf"},
	reflect.Int64: {"an integer", "0"}, reflect.Float64: {"a number", "0"},
	reflect.Struct: {"an object", "{"}, reflect.Map: {"an object", "{"}, reflect.Slice: {"an array", "["},
}

// Present reports whether a member is present and not null.
func Present(raw jsontext.Value) bool { return len(raw) > 0 && raw.Kind() != 'n' }

// CheckObject adds an issue if a member is present and not an object. It replaces
// null with nil.
func CheckObject(raw *jsontext.Value, path string, issues *fault.Issues) {
	switch {
	case !Present(*raw):
		*raw = nil
	case raw.Kind() != '{':
		issues.Add(path, fault.IssueType, "Must be an object.")
	}
}

// maxSafeInteger is the largest integer that all JSON decoders represent exactly.
const maxSafeInteger = 1<<53 - 1

// Integer returns the value of an integer, which may be written as 10, 10.0 or
// 1e1. It rejects integers that other decoders round.
func Integer(raw jsontext.Value) (int64, bool) {
	f, ok := Number(raw)
	if !ok || f != math.Trunc(f) || math.Abs(f) > maxSafeInteger {
		return 0, false
	}
	return int64(f), true
}

// Number returns the value of a JSON number in the range of float64.
func Number(raw jsontext.Value) (float64, bool) {
	if raw.Kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return f, err == nil
}

// Digest returns the SHA-256 of a valid body in canonical form, which does not depend on
// white space, escapes or the order of members. Numbers stay as they are, because
// normalizing them would round long ones.
func Digest(body []byte) string {
	canonical := jsontext.Value(slices.Clone(body))
	_ = canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) // cannot fail: the body is valid
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// TrimBOM removes a byte order mark, which some editors and libraries write, from the
// start of a body.
func TrimBOM(body []byte) []byte { return bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")) }
