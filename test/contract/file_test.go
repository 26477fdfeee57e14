package contract

import (
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"telapi/api"
	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/command"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
)

func load(t *testing.T) (*Checker, *schemas) {
	t.Helper()
	c, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSchemas(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func compile(t *testing.T, s *schemas, at string) *jsonschema.Schema {
	t.Helper()
	schema, err := s.compile(at)
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return schema
}

// eachResponse visits every documented response.
func eachResponse(c *Checker, visit func(name, status string, r *openapi3.Response)) {
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, ref := range op.Responses.Map() {
				visit(method+" "+path, status, ref.Value)
			}
		}
	}
	for name, ref := range c.doc.Components.Responses {
		visit(name, "", ref.Value)
	}
}

func TestOpenAPIVersionIsReleaseVersion(t *testing.T) {
	c, _ := load(t)
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.doc.Info.Version, strings.TrimSpace(string(version)); got != want {
		t.Errorf("info.version is %s, want %s as in VERSION", got, want)
	}
}

func TestEveryResponseHasRequestID(t *testing.T) {
	c, _ := load(t)
	eachResponse(c, func(name, status string, r *openapi3.Response) {
		if h := r.Headers["X-Request-Id"]; h == nil || !h.Value.Required {
			t.Errorf("%s %s does not require X-Request-Id", name, status)
		}
	})
}

func TestEveryErrorHasExample(t *testing.T) {
	c, s := load(t)
	envelope := compile(t, s, "/components/schemas/ErrorResponse")
	eachResponse(c, func(name, status string, r *openapi3.Response) {
		if status < "400" || name == "GET /health" && status == "503" {
			return
		}
		content := r.Content["application/json"]
		if content == nil || len(content.Examples) == 0 {
			t.Errorf("%s %s has no example", name, status)
			return
		}
		for which, example := range content.Examples {
			if err := envelope.Validate(example.Value.Value); err != nil {
				t.Errorf("%s %s, example %s: %v", name, status, which, err)
			}
			body := example.Value.Value.(map[string]any)["error"].(map[string]any)
			if code := fault.Code(body["code"].(string)); fmt.Sprint(code.Status()) != status {
				t.Errorf("%s %s has an example with %s, whose status is %d", name, status, code, code.Status())
			}
		}
	})
}

func TestExamplesMatchTheirSchemas(t *testing.T) {
	c, s := load(t)
	seen := 0
	check := func(at string, content openapi3.Content) {
		for mediaType, m := range content {
			for which, example := range m.Examples {
				seen++
				if err := compile(t, s, at+pointer("content", mediaType, "schema")).Validate(example.Value.Value); err != nil {
					t.Errorf("%s, example %s: %v", at, which, err)
				}
			}
		}
	}
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, ref := range op.Responses.Map() {
				if ref.Ref == "" {
					check(pointer("paths", path, strings.ToLower(method), "responses", status), ref.Value.Content)
				}
			}
		}
	}
	for name, ref := range c.doc.Components.Responses {
		check(pointer("components", "responses", name), ref.Value.Content)
	}
	for name, ref := range c.doc.Components.Headers {
		if example, ok := ref.Value.Example.(string); ok {
			seen++
			if err := compile(t, s, pointer("components", "headers", name, "schema")).Validate(example); err != nil {
				t.Errorf("header %s: %v", name, err)
			}
		}
	}
	if seen < 20 {
		t.Errorf("found %d examples, want at least 20: the test misses places", seen)
	}
}

func TestEveryComponentIsUsed(t *testing.T) {
	c, _ := load(t)
	used := map[string]bool{}
	for _, ref := range regexp.MustCompile(`'#(/components/\w+/\w+)'`).FindAllStringSubmatch(string(api.OpenAPI), -1) {
		used[ref[1]] = true
	}
	check := func(section, name string) {
		if at := pointer("components", section, name); !used[at] {
			t.Errorf("%s is not used", at)
		}
	}
	for name := range c.doc.Components.Schemas {
		check("schemas", name)
	}
	for name := range c.doc.Components.Responses {
		check("responses", name)
	}
	for name := range c.doc.Components.Headers {
		check("headers", name)
	}
	for name := range c.doc.Components.Parameters {
		check("parameters", name)
	}
}

func TestOperationsNameCredentialsAndScopes(t *testing.T) {
	c, _ := load(t)
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			scope := extension(op, "x-required-scope")
			if !strings.HasPrefix(path, "/api/v1/") && scope == "" {
				if op.Security != nil && path != "/metrics" && !strings.HasPrefix(path, "/ws/") {
					t.Errorf("%s %s requires a credential, but no scope", method, path)
				}
				continue
			}
			if op.OperationID == "" || len(op.Tags) == 0 || op.Summary == "" || op.Description == "" {
				t.Errorf("%s %s needs an operationId, a tag, a summary and a description", method, path)
			}
			if strings.HasPrefix(path, "/api/v1/webhooks/") {
				if _, token := (*op.Security)[0]["CallbackToken"]; !token || scope != "" {
					t.Errorf("%s %s must require a callback token and no scope", method, path)
				}
				continue
			}
			if op.Security == nil || len(*op.Security) != 2 {
				t.Errorf("%s %s must accept an API key or a console JWT", method, path)
				continue
			}
			for i, scheme := range []string{"ApiKey", "ConsoleJwt"} {
				if got := (*op.Security)[i][scheme]; !slices.Equal(got, []string{scope}) {
					t.Errorf("%s %s: %s requires %v, x-required-scope is %q", method, path, scheme, got, scope)
				}
			}
		}
	}
}

func TestEnumsMatchCode(t *testing.T) {
	_, s := load(t)
	var codes []fault.Code
	for _, e := range fault.Catalogue {
		codes = append(codes, e.Code)
	}
	var commands []string
	for _, c := range command.Catalogue {
		commands = append(commands, c.Type)
	}
	for at, want := range map[string][]string{
		"/components/schemas/ErrorCode":                                   texts(codes),
		"/components/schemas/Scope":                                       texts(auth.Scopes),
		"/components/schemas/Mode":                                        texts(endpoint.Modes),
		"/components/schemas/Key/properties/state":                        texts(auth.KeyStates),
		"/components/schemas/AuditEntry/properties/action":                texts(audit.Actions),
		"/components/schemas/AuditEntry/properties/actor/properties/type": texts(audit.ActorTypes),
		"/components/schemas/CallbackTrial/properties/kind":               texts(wire.WorkItemKinds),
		"/components/schemas/SessionState":                                texts(session.States),
		"/components/schemas/CommandType":                                 commands,
		"/components/schemas/CapabilitySet/properties/messageTypes/items": texts(wire.MessageTypes),
		"/components/schemas/CapabilitySet/properties/directions/items":   texts(wire.Directions),
		"/components/schemas/AddressLimit/properties/tier":                texts([]ratelimit.Tier{ratelimit.API, ratelimit.Webhook, ratelimit.Auth}),
		"/components/schemas/Issue/properties/code": {
			fault.IssueRequired, fault.IssueType, fault.IssueValue, fault.IssueTooSmall, fault.IssueTooLarge,
			fault.IssueTooLong, fault.IssueTooMany, fault.IssueUnknown, fault.IssueForbidden,
		},
	} {
		var listed []string
		for _, v := range compile(t, s, at).Enum.Values {
			listed = append(listed, v.(string))
		}
		slices.Sort(listed)
		slices.Sort(want)
		if !slices.Equal(listed, want) {
			t.Errorf("%s lists %q, want %q as in the code", at, listed, want)
		}
	}
}

func texts[S ~string](list []S) []string {
	var out []string
	for _, s := range list {
		out = append(out, string(s))
	}
	return out
}

func TestCapabilitiesMatchOpenAPI(t *testing.T) {
	doc, err := endpoint.Deployment{Version: "0.9.18", Features: endpoint.Features{WebRTC: true, APIAccess: true}}.Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	served := fixed(stub{200, limitedHeader + "Cache-Control: private, no-cache\nETag: \"v1\"\n", string(doc)})
	if _, err := get(Transport(t, served), httptest.NewRequest("GET", "/api/v1/runtime/capabilities", nil)); err != nil {
		t.Error(err)
	}
	var rec recorder
	if _, err := get(Transport(&rec, served), httptest.NewRequest("GET", "/api/v1/runtime/endpoints/ep_1", nil)); err != nil {
		t.Error(err)
	}
	if !strings.Contains(rec.String(), "missing property 'endpoint'") {
		t.Errorf("capabilities without an endpoint were accepted for an endpoint: %q", rec.String())
	}
}

func TestCompareRoutes(t *testing.T) {
	c, _ := load(t)
	var routes []Route
	for _, r := range c.routes() {
		routes = append(routes, r)
	}
	changed := func(change func([]Route) []Route) string {
		var rec recorder
		CompareRoutes(&rec, change(slices.Clone(routes)))
		return rec.String()
	}
	first := routes[0].Method + " " + routes[0].Path
	for _, tt := range []struct {
		name   string
		change func([]Route) []Route
		want   string // in the failure message; empty: no failure
	}{
		{"equal", func(r []Route) []Route { return r }, ""},
		{"undocumented route", func(r []Route) []Route { return append(r, Route{Method: "POST", Path: "/new"}) }, "POST /new is a route"},
		{"undocumented method", func(r []Route) []Route { return append(r, Route{Method: "POST", Path: "/health"}) }, "POST /health is a route"},
		{"missing route", func(r []Route) []Route { return r[1:] }, "lists " + first},
		{"different scope", func(r []Route) []Route { r[0].Scope += "X"; return r }, first + ": the route has scope"},
		{"different tier", func(r []Route) []Route { r[0].Tier += "x"; return r }, first + ": the route has scope"},
		{"different parameters", func(r []Route) []Route { r[0].Params += " x"; return r }, first + ": the route has scope"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := changed(tt.change)
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("reported %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInvalidOpenAPIIsRejected(t *testing.T) {
	file := string(api.OpenAPI)
	for name, broken := range map[string]string{
		"not YAML":                  "openapi: [",
		"dangling reference":        strings.Replace(file, "$ref: '#/components/schemas/Health'", "$ref: '#/components/schemas/Wealth'", 1),
		"default response":          strings.Replace(file, "'413':", "default:", 1),
		"invalid schema":            strings.Replace(file, "minimum: 0", "minimum: zero", 1),
		"no 404 for unlisted paths": strings.ReplaceAll(strings.ReplaceAll(file, "    NotFound:\n", "    Missing:\n"), "responses/NotFound'", "responses/Missing'"),
	} {
		if _, err := New([]byte(broken)); err == nil {
			t.Errorf("New accepted a file with: %s", name)
		}
	}
}
