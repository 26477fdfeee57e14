package bot

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// onlyError tells whether data is an object whose sole member is "error": how
// a provider says that it has no result. It reads no further than it has to:
// of most bodies the first name's first letter.
func onlyError(data []byte) bool {
	if name := bytes.TrimLeft(data, "{ \t\r\n"); len(name) < 2 || name[1] != 'e' && name[1] != '\\' {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return false
	}
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '"' || t.String() != "error" {
		return false
	}
	return dec.SkipValue() == nil && dec.PeekKind() == '}'
}

// readFailure checks a provider's error envelope and returns the error.
func readFailure(data []byte, issues *fault.Issues) (jsontext.Value, error) {
	var e struct {
		Error jsontext.Value `json:"error"`
	}
	if err := strictjson.Decode(data, &e, "", issues); err != nil {
		return nil, err
	}
	var parts struct {
		Code    *string `json:"code"`
		Message *string `json:"message"`
	}
	if err := strictjson.Decode(e.Error, &parts, "/error", issues); err != nil {
		return nil, err
	}
	if parts.Code == nil {
		issues.Missing("/error/code", "An error has a code.")
	}
	if parts.Message == nil {
		issues.Missing("/error/message", "An error has a message.")
	}
	return e.Error, nil
}
