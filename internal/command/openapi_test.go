package command

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/oasdiff/yaml"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

// schema is a part of the OpenAPI description.
type schema = map[string]any

// openAPI returns components.schemas of api/openapi.yaml.
func openAPI(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("../../api/openapi.yaml")
	testkit.Must(t, err)
	var document struct{ Components struct{ Schemas schema } }
	testkit.Must(t, testkit.ErrorOf(yaml.Unmarshal(text, &document, yaml.DecodeOpts{})))
	return document.Components.Schemas
}

func properties(s any) schema { return s.(schema)["properties"].(schema) }

// resolve follows a reference to another schema.
func resolve(schemas schema, s any) schema {
	if ref, ok := s.(schema)["$ref"].(string); ok {
		return schemas[ref[strings.LastIndexByte(ref, '/')+1:]].(schema)
	}
	return s.(schema)
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

func TestOpenAPIDescribesCommands(t *testing.T) {
	schemas, variants := openAPI(t), map[string]schema{}
	for _, v := range schemas["ManagedCommand"].(schema)["oneOf"].([]any) {
		variants[properties(v)["type"].(schema)["const"].(string)] = v.(schema)
	}
	testkit.Equal(t, "commands are described", len(variants), len(Catalogue))
	for _, spec := range Catalogue {
		variant := variants[spec.Type]
		if variant == nil {
			t.Errorf("%s is not described", spec.Type)
			continue
		}
		if variant["x-apply"] != string(spec.Apply) || variant["description"] != spec.Effect {
			t.Errorf("%s: described as %v %q, want %s %q", spec.Type, variant["x-apply"], variant["description"], spec.Apply, spec.Effect)
		}
		members := maps.Clone(spec.members)
		delete(members, "source") // telapi sets it
		described := properties(variant)
		testkit.Equal(t, fmt.Sprintf("%s: described members", spec.Type), slices.Sorted(maps.Keys(described)), sorted(members))
		required := map[string]bool{"type": true}
		for _, f := range spec.Fields {
			if f.Required {
				required[f.Name] = true
			}
		}
		if got, want := fmt.Sprint(slices.SortedFunc(slices.Values(variant["required"].([]any)), compareText)), fmt.Sprint(sorted(required)); got != want {
			t.Errorf("%s: described as required %s, want %s", spec.Type, got, want)
		}
		for _, f := range spec.Fields {
			at := schema{"properties": described}
			for name := range strings.SplitSeq(f.Name, ".") {
				at = resolve(schemas, properties(at)[name])
			}
			testkit.Equal(t, fmt.Sprintf("%s.%s: described bounds", spec.Type, f.Name), boundsOf(t, at), boundsOf(t, f.Bounds))
		}
		delete(described, "type")
		probe(t, spec.Type, schemas, described, func(name string, value jsontext.Value) (issues fault.Issues) {
			ParseActions(fmt.Appendf(nil, `{"type":%q,%q:%s}`, spec.Type, name, value), "", &issues)
			return issues
		})
	}
}

// boundsOf returns the bounds in a schema or in the capabilities.
func boundsOf(t *testing.T, s any) string {
	t.Helper()
	raw, err := json.Marshal(s)
	testkit.Must(t, err)
	found := schema{}
	testkit.Must(t, json.Unmarshal(raw, &found))
	maps.DeleteFunc(found, func(name string, _ any) bool {
		return !slices.Contains([]string{"minimum", "exclusiveMinimum", "maximum", "maxLength", "pattern"}, name)
	})
	return fmt.Sprint(found)
}

func compareText(a, b any) int { return strings.Compare(a.(string), b.(string)) }

func TestOpenAPIDescribesControlEvents(t *testing.T) {
	schemas := openAPI(t)
	event := schemas["BotControlEvent"].(schema)
	if fmt.Sprint(event["required"]) != "[name]" {
		t.Errorf("required members of a control event: %v, want [name]", event["required"])
	}
	described := properties(schemas["BotControlValue"])
	testkit.Equal(t, "described members", slices.Sorted(maps.Keys(described)), sorted(eventMembers))
	parse := func(name, value string) (issues fault.Issues) {
		var e ControlEvent
		testkit.Must(t, json.Unmarshal(fmt.Appendf(nil, `{"name":%s,"value":%s}`, name, value), &e))
		e.Parse("", &issues)
		return issues
	}
	probe(t, "", schemas, schema{"name": properties(event)["name"]}, func(_ string, value jsontext.Value) (issues fault.Issues) {
		if value.Kind() != '"' { // the decoder of the body checks types
			issues.Add("/name", fault.IssueType, "")
			return issues
		}
		return parse(string(value), "{}")
	})
	for _, name := range properties(event)["name"].(schema)["enum"].([]any) {
		probe(t, name.(string), schemas, described, func(member string, value jsontext.Value) fault.Issues {
			return parse(fmt.Sprintf("%q", name), fmt.Sprintf("{%q:%s}", member, value))
		})
	}
}

func TestOpenAPIDescribesSessionParams(t *testing.T) {
	raw, err := json.Marshal(SessionParamsSchema())
	testkit.Must(t, err)
	var published schema
	testkit.Must(t, json.Unmarshal(raw, &published))
	for _, s := range properties(published) {
		delete(s.(schema), "x-command")
		delete(s.(schema), "x-field")
	}
	described := openAPI(t)["SessionParams"].(schema)
	for _, name := range []string{"type", "additionalProperties", "properties"} {
		if got, want := fmt.Sprint(described[name]), fmt.Sprint(published[name]); got != want {
			t.Errorf("%s of sessionParams: described as %s\nwant %s", name, got, want)
		}
	}
}

// probe checks that parse accepts what the descriptions of members allow, and reports
// an issue for what they don't allow, at the bounds and for all types of JSON.
func probe(t *testing.T, base string, schemas, members schema, parse func(name string, value jsontext.Value) fault.Issues) {
	t.Helper()
	for name, described := range members {
		s := resolve(schemas, described)
		if nested, ok := s["properties"].(schema); ok && s["type"] == "object" {
			probe(t, base+"/"+name, schemas, nested, func(member string, value jsontext.Value) fault.Issues {
				return parse(name, fmt.Appendf(nil, `{%q:%s}`, member, value))
			})
		}
		valid, invalid := samples(t, s, described)
		for _, value := range valid {
			if issues := parse(name, jsontext.Value(value)); len(issues.List()) > 0 {
				t.Errorf("%s/%s: %.80s is rejected (%v), but api/openapi.yaml allows it", base, name, value, issues.List())
			}
		}
		for _, value := range invalid {
			issues := parse(name, jsontext.Value(value))
			if !slices.ContainsFunc(issues.List(), func(i fault.Issue) bool { return strings.Contains(i.Path, "/"+name) }) {
				t.Errorf("%s/%s: %.80s is accepted, but api/openapi.yaml does not allow it", base, name, value)
			}
		}
	}
}

// samples returns JSON values that a schema allows, and others that it does not.
func samples(t *testing.T, s schema, described any) (valid, invalid []string) {
	const huge = 1<<53 - 1 // integers are exact up to here
	text := func(n int) string { return `"` + strings.Repeat("ä", n) + `"` }
	limit := func(keyword string) (n int, found bool) {
		value, found := s[keyword].(float64)
		return int(value), found
	}
	numbers := func() {
		if above, bounded := limit("exclusiveMinimum"); bounded {
			s = maps.Clone(s)
			s["minimum"] = float64(above + 1) // of the integers
		}
		minimum, bounded := limit("minimum")
		if valid = append(valid, fmt.Sprint(minimum)); bounded {
			invalid = append(invalid, fmt.Sprint(minimum-1))
		} else {
			valid = append(valid, fmt.Sprint(-huge))
		}
		if maximum, bounded := limit("maximum"); bounded {
			valid, invalid = append(valid, fmt.Sprint(maximum)), append(invalid, fmt.Sprint(maximum+1))
		} else {
			valid = append(valid, fmt.Sprint(huge))
		}
	}
	isTarget := fmt.Sprint(described) == fmt.Sprint(schema{"$ref": "#/components/schemas/TransferTarget"})
	switch {
	case s["enum"] != nil:
		for _, value := range s["enum"].([]any) {
			valid = append(valid, fmt.Sprintf("%q", value))
		}
		return valid, []string{`""`, `"other"`, "1", "{}"}
	case isTarget: // its grammar is in the description
		return []string{`"+4930123456"`, `"tel:+4930123456"`, `"sip:1@pbx.example"`, `"sips:1@pbx.example"`}, []string{`""`, `"https://pbx.example"`, "1", "{}"}
	case s["oneOf"] != nil:
		variants := s["oneOf"].([]any)
		for _, v := range variants {
			accepted, rejected := samples(t, v.(schema), nil)
			valid, invalid = append(valid, accepted...), append(invalid, rejected...)
		}
		return valid, slices.DeleteFunc(invalid, func(value string) bool { return slices.Contains([]string{"{}", "[]"}, value) })
	case len(s) == 0:
		return []string{"1", `"x"`, "true", "[]", "{}"}, nil
	}
	switch s["type"] {
	case "boolean":
		return []string{"true", "false"}, []string{`"true"`, "1", "{}"}
	case "integer":
		numbers()
		return valid, append(invalid, "1.5", `"1"`, "true")
	case "number":
		numbers()
		return append(valid, "1.5"), append(invalid, `"1"`, "true")
	case "string":
		if s["pattern"] != nil { // a set of characters
			valid, invalid = append(valid, `"1"`, `"a"`, `"#"`), append(invalid, `"x"`, `"1\n"`, `"ä"`)
			text = func(n int) string { return `"` + strings.Repeat("1", n) + `"` }
		}
		if maximum, bounded := limit("maxLength"); bounded {
			valid, invalid = append(valid, text(maximum)), append(invalid, text(maximum+1))
		} else {
			valid = append(valid, text(100_000))
		}
		if _, required := limit("minLength"); !required {
			valid = append(valid, `""`)
		}
		return valid, append(invalid, "1", "{}", "[]")
	case "object":
		if s["additionalProperties"] != false {
			valid = append(valid, `{"x-other":"1"}`)
		} else {
			invalid = append(invalid, `{"x-other":"1"}`)
		}
		if values, ok := s["additionalProperties"].(schema); ok && values["type"] == "string" {
			invalid = append(invalid, `{"a":1}`)
		}
		return append(valid, "{}"), append(invalid, "[]", `"x"`, "1", "true")
	case "array":
		item := func(n int) string {
			return "[" + strings.Repeat(`{"name":"a","value":""},`, n) + `{"name":"a","value":"b"}]`
		}
		if maximum, bounded := limit("maxItems"); bounded {
			valid, invalid = append(valid, item(maximum-1)), append(invalid, item(maximum))
		} else {
			valid = append(valid, item(1000))
		}
		return append(valid, "[]"), append(invalid, `[{"name":"a"}]`, `[{"value":"a"}]`, `[{"name":1,"value":"a"}]`, `[{"name":"a","value":1}]`, "[1]", `"x"`, "1", "{}")
	}
	t.Fatalf("unknown schema %v", s)
	return nil, nil
}
