package bot

import (
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// toolResult is the body of a tool: any JSON value.
type toolResult jsontext.Value

// parseTool decodes the body of a tool. A valid error envelope is the tool's
// error; an object that merely resembles one is a result.
func parseTool(data []byte) (Result, error) {
	if isErrorEnvelope(data) {
		if result, err := parseError(data); !fault.Is(err, fault.Validation) {
			return result, err
		}
	}
	var issues fault.Issues // stays empty: every JSON value is a result
	var result jsontext.Value
	if err := strictjson.Decode(data, &result, "", &issues); err != nil {
		return nil, err
	}
	return toolResult(result), nil
}

// Entries implements Result. A tool sends no commands.
func (r toolResult) Entries(base wire.Entry, _ *command.Policy) []wire.Entry {
	base.Kind, base.Result = wire.KindToolResult, jsontext.Value(r)
	return []wire.Entry{base}
}

// HasIdentity implements Result.
func (toolResult) HasIdentity() bool { return false }
