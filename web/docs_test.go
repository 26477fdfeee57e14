package web

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "rewrite docs/openapi.json")

// The API reference reads the description as JSON: browsers have no parser for YAML.
func TestReferenceHasCurrentDescription(t *testing.T) {
	source, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(source, &document); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := writeJSON(&want, &document); err != nil {
		t.Fatal(err)
	}
	want.WriteByte('\n')
	if *update {
		if err := os.WriteFile("docs/openapi.json", want.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("docs/openapi.json"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/openapi.json is not api/openapi.yaml as JSON (%v): run make generate", err)
	}
}

// writeJSON writes a node with the members of its objects in their order.
func writeJSON(out *bytes.Buffer, node *yaml.Node) error {
	open, end, step := "[", "]", 1
	switch node.Kind {
	case yaml.DocumentNode:
		return writeJSON(out, node.Content[0])
	case yaml.AliasNode:
		return writeJSON(out, node.Alias)
	case yaml.MappingNode:
		open, end, step = "{", "}", 2
	case yaml.ScalarNode:
		var value any
		if err := node.Decode(&value); err != nil {
			return err
		}
		encoded, err := json.Marshal(value)
		out.Write(encoded)
		return err
	}
	out.WriteString(open)
	for i := 0; i < len(node.Content); i += step {
		if i > 0 {
			out.WriteByte(',')
		}
		if step == 2 {
			name, err := json.Marshal(node.Content[i].Value) // 200 is a text too
			if err != nil {
				return err
			}
			out.Write(append(name, ':'))
		}
		if err := writeJSON(out, node.Content[i+step-1]); err != nil {
			return err
		}
	}
	out.WriteString(end)
	return nil
}
