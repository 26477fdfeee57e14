package contract

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// runtimeFrames contains the message schemas of /ws/runtime: requests by operation, replies
// by name and pushes by event.
type runtimeFrames struct {
	requests, replies, pushes map[string]*jsonschema.Schema
}

func (f *frames) addRuntimeOperation(op asyncOperation, schemas *schemas) error {
	into := f.runtime.requests
	if op.Action == Send {
		into = f.runtime.pushes
	}
	for _, m := range slices.Concat(op.Messages, op.Reply.Messages) {
		name, schema, err := f.message(m, schemas)
		if err != nil {
			return err
		}
		if slices.Contains(op.Reply.Messages, m) {
			into = f.runtime.replies
		}
		into[name] = schema
	}
	return nil
}

// CheckRuntimeRequest returns an error if a frame that a runtime sends differs from
// api/asyncapi.yaml.
func CheckRuntimeRequest(frame []byte) error {
	f, value, err := decodeRuntimeFrame(frame)
	if err != nil {
		return err
	}
	return checkNamed(f.requests, "op", value, frame)
}

// CheckRuntimeFrame returns an error if a frame that the service sends to a runtime differs
// from api/asyncapi.yaml. A reply must be the reply to some request.
func CheckRuntimeFrame(frame []byte) error {
	f, value, err := decodeRuntimeFrame(frame)
	if err != nil {
		return err
	}
	if _, push := value["event"]; push {
		return checkNamed(f.pushes, "event", value, frame)
	}
	problems := []error{fmt.Errorf("frame %s is not a reply of api/asyncapi.yaml", excerpt(frame))}
	for name, schema := range f.replies {
		err := schema.Validate(value)
		if err == nil {
			return nil
		}
		problems = append(problems, fmt.Errorf("%s: %w", name, err))
	}
	return errors.Join(problems...)
}

// checkNamed checks a frame against the message that one of its members names.
func checkNamed(messages map[string]*jsonschema.Schema, member string, value map[string]any, frame []byte) error {
	name, _ := value[member].(string)
	schema, known := messages[name]
	if !known {
		return fmt.Errorf("frame %s: api/asyncapi.yaml has no message with the %s %q", excerpt(frame), member, name)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("frame %s differs from api/asyncapi.yaml:\n%w", excerpt(frame), err)
	}
	return nil
}

func decodeRuntimeFrame(frame []byte) (*runtimeFrames, map[string]any, error) {
	f, err := parsedFrames()
	if err != nil {
		return nil, nil, fmt.Errorf("read api/asyncapi.yaml: %w", err)
	}
	// Unlike the decoder below, IsValid rejects duplicate members and invalid UTF-8.
	if !jsontext.Value(frame).IsValid() {
		return nil, nil, fmt.Errorf("frame %s is not a single JSON value", excerpt(frame))
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(frame))
	if err != nil {
		return nil, nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("frame %s is not a JSON object", excerpt(frame))
	}
	return &f.runtime, object, nil
}
