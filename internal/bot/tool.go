package bot

import (
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// ToolBody is a tool's callback body: the result, whole, whatever its shape.
type ToolBody struct {
	result  jsontext.Value
	failure jsontext.Value
}

// ParseTool reads any JSON value. An error envelope is the tool's error; a
// result that merely has a member of that name is a result.
func ParseTool(data []byte) (*ToolBody, error) {
	b := new(ToolBody)
	var issues fault.Issues
	if onlyError(data) {
		failure, err := readFailure(data, &issues)
		if err != nil {
			return nil, err
		}
		if issues.Err() == nil {
			b.failure = failure
			return b, nil
		}
	}
	if err := strictjson.Decode(data, &b.result, "", &issues); err != nil {
		return nil, err
	}
	return b, nil
}

// Entries implements Result. A tool gives no commands.
func (b *ToolBody) Entries(base wire.Entry, _ *command.Policy) []wire.Entry {
	s := stream{base: base}
	if b.failure != nil {
		s.add(wire.KindProviderError).Error = b.failure
	} else {
		s.add(wire.KindToolResult).Result = b.result
	}
	return s.entries
}
