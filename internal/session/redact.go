package session

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/redact"
)

// readable are the members whose text says what an action is, not what a person
// said or typed.
var readable = map[string]bool{"type": true, "name": true, "action": true, "id": true, "timestamp": true}

// blank replaces every text in a JSON value by the redaction mark, at any depth,
// except where it is itself the value of a readable member: a list or an object
// in such a place is blanked like any other.
func blank(value []byte) ([]byte, error) {
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	enc := jsontext.NewEncoder(&out, jsontext.PreserveRawStrings(true))
	member := "" // the name before this value, in an object
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && bytes.Count(out.Bytes(), []byte("\n")) == 1 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil // one value, and nothing after it
		}
		if err != nil {
			return nil, err
		}
		kind, length := dec.StackIndex(dec.StackDepth())
		name := token.Kind() == '"' && kind == '{' && length%2 == 1
		text := token.Kind() == '"' && !name
		switch {
		case text && readable[member]:
		case text:
			token = jsontext.String(redact.Placeholder)
		}
		member = ""
		if name {
			member = token.String()
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
}
