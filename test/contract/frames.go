package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/oasdiff/yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"telapi/api"
)

// asyncAPI contains the parts of an AsyncAPI 3.0 file that tests check.
type asyncAPI struct {
	Info struct {
		Version    string      `json:"version"`
		CloseCodes []closeCode `json:"x-close-codes"`
		Limits     any         `json:"x-limits"`
	} `json:"info"`
	Channels   map[string]asyncChannel   `json:"channels"`
	Operations map[string]asyncOperation `json:"operations"`
}

type asyncChannel struct {
	Address  string             `json:"address"`
	Messages map[string]message `json:"messages"`
	Limits   map[string]int64   `json:"x-limits"`
}

type message struct {
	Name     string `json:"name"`
	Examples []struct {
		Payload json.RawMessage `json:"payload"`
	} `json:"examples"`
}

type asyncOperation struct {
	Action   Action      `json:"action"`
	Channel  reference   `json:"channel"`
	Messages []reference `json:"messages"`
	Reply    struct {
		Messages []reference `json:"messages"`
	} `json:"reply"`
}

type closeCode struct {
	Code      int    `json:"code"`
	Reason    string `json:"reason"`
	Reconnect bool   `json:"reconnect"`
}

type reference struct {
	Ref string `json:"$ref"`
}

// name returns the last part of a reference.
func (r reference) name() string { return r.Ref[strings.LastIndex(r.Ref, "/")+1:] }

// Action is the direction of a frame from the service's point of view.
type Action string

// The actions of api/asyncapi.yaml.
const (
	Receive Action = "receive"
	Send    Action = "send"
)

// frames contains the message schemas of /ws/session by action and message type, and those
// of /ws/runtime.
type frames struct {
	file     asyncAPI
	messages map[Action]map[string][]*jsonschema.Schema
	runtime  runtimeFrames
}

var parsedFrames = sync.OnceValues(func() (*frames, error) { return readFrames(api.AsyncAPI) })

func readFrames(file []byte) (*frames, error) {
	f := &frames{messages: map[Action]map[string][]*jsonschema.Schema{}, runtime: runtimeFrames{
		requests: map[string]*jsonschema.Schema{}, replies: map[string]*jsonschema.Schema{}, pushes: map[string]*jsonschema.Schema{},
	}}
	asJSON, err := yaml.YAMLToJSON(file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(asJSON, &f.file); err != nil {
		return nil, err
	}
	schemas, err := newSchemas(file)
	if err != nil {
		return nil, err
	}
	for _, op := range f.file.Operations {
		if op.Channel.name() == "runtime" {
			if err := f.addRuntimeOperation(op, schemas); err != nil {
				return nil, err
			}
			continue
		}
		byType := map[string][]*jsonschema.Schema{}
		f.messages[op.Action] = byType
		for _, m := range op.Messages {
			name, schema, err := f.message(m, schemas)
			if err != nil {
				return nil, err
			}
			byType[name] = append(byType[name], schema)
		}
	}
	return f, nil
}

// message returns the name and the compiled payload of a message.
func (f *frames) message(m reference, schemas *schemas) (string, *jsonschema.Schema, error) {
	at := follow(m.Ref, "")
	schema, err := schemas.compile(at + "/payload")
	if err != nil {
		return "", nil, err
	}
	channel := strings.Split(at, "/")[2] // of /channels/NAME/messages/NAME
	return f.file.Channels[channel].Messages[m.name()].Name, schema, nil
}

// check returns an error if a frame matches no message of the action.
func (f *frames) check(action Action, raw []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	envelope, _ := value.(map[string]any)
	name, _ := envelope["type"].(string)
	problems := []error{fmt.Errorf("the frame matches no message of type %q with action %s", name, action)}
	for _, schema := range f.messages[action][name] {
		err := schema.Validate(value)
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// CheckFrame fails t if a frame of /ws/session differs from api/asyncapi.yaml.
func CheckFrame(t testing.TB, action Action, raw []byte) {
	t.Helper()
	f, err := parsedFrames()
	if err != nil {
		t.Fatalf("read api/asyncapi.yaml: %v", err)
	}
	if err := f.check(action, raw); err != nil {
		t.Errorf("frame %s differs from api/asyncapi.yaml:\n%v", excerpt(raw), err)
	}
}
