package session

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/redact"
)

// keptMembers are the members whose text describes an action. They hold no
// personal data.
var keptMembers = map[string]bool{"type": true, "name": true, "action": true, "id": true, "timestamp": true}

// redactText replaces every string in a JSON value by the redaction mark, at any
// depth, except strings that are the value of a kept member. Strings inside an
// array or object under a kept member are replaced.
func redactText(value []byte) ([]byte, error) {
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	enc := jsontext.NewEncoder(&out, jsontext.PreserveRawStrings(true))
	member := "" // name of the current member
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && bytes.Count(out.Bytes(), []byte("\n")) == 1 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil // exactly one value
		}
		if err != nil {
			return nil, err
		}
		container, length := dec.StackIndex(dec.StackDepth())
		isString := token.Kind() == '"'
		isName := isString && container == '{' && length%2 == 1
		if isString && !isName && !keptMembers[member] {
			token = jsontext.String(redact.Placeholder)
		}
		member = ""
		if isName {
			member = token.String()
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
}
