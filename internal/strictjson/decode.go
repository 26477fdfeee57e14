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

// Limits on the structure of a value, far above what real bodies need. They are
// checked before the value is decoded, because a short JSON text can become a large
// Go value.
const (
	maxDepth   = 128    // recursive parsers need stack for each level
	maxMembers = 10_000 // of one object; the decoder stores their names to find duplicates
	// maxObjects and maxElements count all objects, and all members and array
	// elements, of a value that is decoded into a Go type. They don't apply to a
	// jsontext.Value, which needs no more memory than its text.
	maxObjects  = 10_000
	maxElements = 32_768
)

// Decode decodes exactly one JSON value into v. The error is MALFORMED_JSON.
//
// A value of the wrong type is added to issues, with a path that starts with base.
// Its field is left zero; a pointer field points to zero, so that the value does
// not count as missing. A null counts as absent.
func Decode(data []byte, v any, base string, issues *fault.Issues) error {
	_, raw := v.(*jsontext.Value)
	if err := checkStructure(data, raw); err != nil {
		return err
	}
	err := json.Unmarshal(data, v)
	if _, ok := errors.AsType[*json.SemanticError](err); ok {
		// Decode again to record all type errors. This is slower, but only needed for invalid input.
		reflect.ValueOf(v).Elem().SetZero()
		err = json.Unmarshal(data, v, json.WithUnmarshalers(recordTypeErrors(base, issues)))
	}
	if err != nil {
		return fault.New(fault.MalformedJSON, "Invalid JSON: %s.", syntaxProblem(err)).WithCause(err)
	}
	return nil
}

// syntaxProblem describes a syntax error without quoting the input.
func syntaxProblem(err error) string {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return "unexpected end"
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Sprintf("duplicate name at byte %d", syntax.ByteOffset)
	default:
		return fmt.Sprintf("syntax error at byte %d", syntax.ByteOffset)
	}
}

// checkStructure checks the limits. It only counts brackets and commas outside
// strings, so it may return any result for invalid JSON, which the decoder rejects.
func checkStructure(data []byte, raw bool) error {
	var commas [maxDepth + 1]int32 // of the open containers
	var isObject [maxDepth + 1]bool
	depth, objects, elements := 0, 0, 0
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			i = stringEnd(data, i)
		case '{', '[':
			if depth++; depth > maxDepth {
				return tooMany(maxDepth, "nesting levels")
			}
			if commas[depth], isObject[depth] = 0, c == '{'; isObject[depth] {
				objects++
			}
		case ',':
			elements++
			if commas[depth]++; isObject[depth] && commas[depth] >= maxMembers {
				return tooMany(maxMembers, "members in one object")
			}
		case '}', ']':
			depth = max(0, depth-1)
		}
	}
	switch {
	case raw:
		return nil
	case objects > maxObjects:
		return tooMany(maxObjects, "objects")
	case elements > maxElements:
		return tooMany(maxElements, "members and array elements")
	}
	return nil
}

func tooMany(limit int, what string) error {
	return fault.New(fault.MalformedJSON, "The JSON has more than %d %s.", limit, what)
}

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
		fits := !checked || kind == 'n' || strings.IndexByte(want.kinds, byte(kind)) >= 0
		if fits && (!checked || kind != '0') {
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

// setNumber sets a field to a number. It returns false if the number is out of range
// or not an integer.
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
func CheckObject(raw *jsontext.Value, path, field string, issues *fault.Issues) {
	switch {
	case !Present(*raw):
		*raw = nil
	case raw.Kind() != '{':
		issues.Add(path+field, fault.IssueType, "Must be an object.")
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

// Digest returns the SHA-256 of a body in canonical form, which does not depend on
// white space, escapes or the order of members. Numbers stay as they are, because
// normalizing them would round long ones.
func Digest(body []byte) (string, error) {
	canonical := jsontext.Value(slices.Clone(body))
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return "", fmt.Errorf("canonicalize body: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// DigestCompact returns a SHA-256 of a body without the white space between
// values. It requires valid JSON and, unlike Digest, does not parse it again.
func DigestCompact(body []byte) string {
	hash := sha256.New()
	start := 0 // of the bytes that are not hashed yet
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case ' ', '\t', '\r', '\n':
			hash.Write(body[start:i])
			start = i + 1
		case '"':
			i = stringEnd(body, i)
		}
	}
	hash.Write(body[start:])
	return hex.EncodeToString(hash.Sum(nil))
}
