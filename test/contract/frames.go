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
	Channels map[string]struct {
		Address  string                    `json:"address"`
		Messages map[string]map[string]any `json:"messages"`
	} `json:"channels"`
	Operations map[string]struct {
		Action   string      `json:"action"`
		Messages []reference `json:"messages"`
	} `json:"operations"`
}

type closeCode struct {
	Code      int    `json:"code"`
	Reason    string `json:"reason"`
	Reconnect bool   `json:"reconnect"`
}

type reference struct {
	Ref string `json:"$ref"`
}

// Action is the direction of a frame from the service's point of view.
type Action string

// The actions of api/asyncapi.yaml.
const (
	Receive Action = "receive"
	Send    Action = "send"
)

// frames contains the message schemas by action and message type.
type frames struct {
	file     asyncAPI
	messages map[Action]map[string][]*jsonschema.Schema
}

var parsedFrames = sync.OnceValues(func() (*frames, error) { return readFrames(api.AsyncAPI) })

func readFrames(file []byte) (*frames, error) {
	f := &frames{messages: map[Action]map[string][]*jsonschema.Schema{}}
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
	session := f.file.Channels["session"].Messages
	for _, op := range f.file.Operations {
		byType := map[string][]*jsonschema.Schema{}
		f.messages[Action(op.Action)] = byType
		for _, m := range op.Messages {
			at := follow(m.Ref, "")
			schema, err := schemas.compile(at + "/payload")
			if err != nil {
				return nil, err
			}
			name, _ := session[at[strings.LastIndex(at, "/")+1:]]["name"].(string)
			byType[name] = append(byType[name], schema)
		}
	}
	return f, nil
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
