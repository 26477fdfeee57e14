package docs

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oasdiff/yaml"

	"telapi/callruntime/wire"
	"telapi/internal/bot"
	"telapi/internal/command"
)

// schema is a part of the OpenAPI description.
type schema = map[string]any

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// openAPISchemas returns components.schemas of api/openapi.yaml.
func openAPISchemas(t *testing.T) schema {
	t.Helper()
	var document struct{ Components struct{ Schemas schema } }
	if _, err := yaml.Unmarshal([]byte(readFile(t, "api/openapi.yaml")), &document, yaml.DecodeOpts{}); err != nil {
		t.Fatal(err)
	}
	return document.Components.Schemas
}

func properties(s any) schema { return s.(schema)["properties"].(schema) }

func TestOpenAPIDescribesSessionParams(t *testing.T) {
	described := openAPISchemas(t)["SessionParams"].(schema)
	names := map[string]bool{}
	for _, p := range command.SessionParams {
		names[p.Name] = true
		got, _ := properties(described)[p.Name].(schema)
		bound := func(keyword string, value int64, applies bool) {
			if want := map[bool]string{true: fmt.Sprint(value), false: "<nil>"}[applies]; fmt.Sprint(got[keyword]) != want && (applies || got[keyword] != nil) {
				t.Errorf("%s: %s is %v, want %s", p.Name, keyword, got[keyword], want)
			}
		}
		if got["type"] != p.Type {
			t.Errorf("%s: type %v, want %s", p.Name, got["type"], p.Type)
		}
		bound("minimum", p.Min, p.Type == "integer")
		bound("maximum", p.Max, p.Type == "integer" && p.Max != math.MaxInt64)
		bound("maxLength", p.Max, p.Type == "string" && p.Max != math.MaxInt64)
	}
	for name := range properties(described) {
		if !names[name] {
			t.Errorf("api/openapi.yaml describes %s, which is not a session parameter", name)
		}
	}
	if described["additionalProperties"] != false {
		t.Error("sessionParams allows additional properties")
	}
}

func TestOpenAPIDescribesCommands(t *testing.T) {
	schemas := openAPISchemas(t)
	variants := map[string]schema{}
	for _, v := range schemas["ManagedCommand"].(schema)["oneOf"].([]any) {
		variants[properties(v)["type"].(schema)["const"].(string)] = v.(schema)
	}
	events := properties(schemas["BotControlValue"])
	for _, spec := range command.Catalogue {
		variant := variants[spec.Type]
		if variant == nil {
			t.Errorf("api/openapi.yaml does not describe the command %s", spec.Type)
			continue
		}
		if variant["x-apply"] != string(spec.Apply) {
			t.Errorf("%s: x-apply is %v, want %s", spec.Type, variant["x-apply"], spec.Apply)
		}
		known := []string{"type", "commandId", "metadata", "transferTarget", "hangupReason"}
		for _, f := range spec.Fields {
			known = append(known, f.Name)
			described := properties(variant)
			if parent, member, found := strings.Cut(f.Name, "."); found { // config.retries
				described, f.Name = properties(resolve(schemas, described[parent])), member
			}
			if described[f.Name] == nil {
				t.Errorf("%s: the field %s is not described", spec.Type, f.Name)
				continue
			}
			property := resolve(schemas, described[f.Name])
			if typ := property["type"]; typ != nil && typ != f.Type {
				t.Errorf("%s: %s has type %v, want %s", spec.Type, f.Name, typ, f.Type)
			}
			if strings.HasPrefix(f.Name, "transfer") && events[f.Name] == nil {
				t.Errorf("control events: the field %s is not described", f.Name)
			}
		}
		for name := range properties(variant) {
			if !slices.Contains(known, name) {
				t.Errorf("%s: %s is described, but is not a field", spec.Type, name)
			}
		}
	}
	if len(variants) != len(command.Catalogue) {
		t.Errorf("%d commands are described, want %d: %v", len(variants), len(command.Catalogue), slices.Sorted(maps.Keys(variants)))
	}
}

// resolve follows a reference to another schema.
func resolve(schemas schema, s any) schema {
	if ref, ok := s.(schema)["$ref"].(string); ok {
		return schemas[ref[strings.LastIndexByte(ref, '/')+1:]].(schema)
	}
	return s.(schema)
}

// The header is part of the contract with providers, but not an API parameter.
func TestOpenAPIOmitsTransactionHeader(t *testing.T) {
	if strings.Contains(readFile(t, "api/openapi.yaml"), "bot-trace-transaction-id") {
		t.Error("api/openapi.yaml contains bot-trace-transaction-id")
	}
}

func TestControlEventsOfProvidersPageAreValid(t *testing.T) {
	examples := regexp.MustCompile("(?s)```json\n([^`]*\"custom\"[^`]*)```").FindAllStringSubmatch(readFile(t, "docs/providers.md"), -1)
	var shown []string
	for _, e := range examples {
		body := `{"conversation":{"identifier":{"id":"call-4711"}},"messages":{"timestamp":"2026-11-15T09:30:00Z","message":[` + e[1] + `]}}`
		if _, err := bot.Parse(wire.BotItem, []byte(body), "call-4711"); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		shown = append(shown, regexp.MustCompile(`"name": "(\w+)", "value"`).FindStringSubmatch(e[1])[1])
	}
	if want := []string{"hangup", "transfer", "handover", "config"}; !slices.Equal(shown, want) {
		t.Errorf("docs/providers.md shows the control events %v, want %v", shown, want)
	}
}

func TestProvidersPageListsDenialReasons(t *testing.T) {
	page := readFile(t, "docs/providers.md")
	block, _, _ := strings.Cut(readFile(t, "internal/command/policy.go"), ")\n\n// PlatformPolicy")
	reasons := regexp.MustCompile(`= "([a-z_]+)"`).FindAllStringSubmatch(block, -1)
	if len(reasons) < 10 {
		t.Fatalf("found %d denial reasons in internal/command/policy.go, want at least 10", len(reasons))
	}
	for _, r := range reasons {
		if !strings.Contains(page, "| `"+r[1]+"` |") {
			t.Errorf("docs/providers.md does not list the denial reason %s", r[1])
		}
	}
}
