package bot

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// providerError is the error object of a provider that has no result.
type providerError jsontext.Value

// isErrorEnvelope reports whether data is an object with "error" as its only
// member. For most bodies the first letter of the first name decides.
func isErrorEnvelope(data []byte) bool {
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

// parseError decodes an error envelope, which has to have a code and a message.
func parseError(data []byte) (Result, error) {
	var issues fault.Issues
	var envelope struct {
		Error jsontext.Value `json:"error"`
	}
	if err := strictjson.Decode(data, &envelope, "", &issues); err != nil {
		return nil, err
	}
	var known struct {
		Code    *string `json:"code"`
		Message *string `json:"message"`
	}
	if err := strictjson.Decode(envelope.Error, &known, "/error", &issues); err != nil {
		return nil, err
	}
	if known.Code == nil {
		issues.Missing("/error/code", "code is required.")
	}
	if known.Message == nil {
		issues.Missing("/error/message", "message is required.")
	}
	return providerError(envelope.Error), issues.Err()
}

// Entries implements Result.
func (e providerError) Entries(base wire.Entry, _ *command.Policy) []wire.Entry {
	base.Kind, base.Error = wire.KindProviderError, jsontext.Value(e)
	return []wire.Entry{base}
}

// HasIdentity implements Result.
func (providerError) HasIdentity() bool { return false }
