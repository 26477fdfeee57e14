package contract

import (
	"fmt"
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
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func load(t *testing.T) (*Checker, *schemas) {
	t.Helper()
	c, err := parsed()
	testkit.Must(t, err)
	s, err := newSchemas(api.OpenAPI)
	testkit.Must(t, err)
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
	testkit.Must(t, err)
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

func TestEveryComponentIsUsed(t *testing.T) {
	_, components, _ := strings.Cut(string(api.OpenAPI), "\ncomponents:\n")
	section := ""
	for _, line := range regexp.MustCompile(`(?m)^(  |    )(\w+):`).FindAllStringSubmatch(components, -1) {
		if line[1] == "  " {
			section = line[2]
		} else if use := fmt.Sprintf("'#/components/%s/%s'", section, line[2]); section != "securitySchemes" && !strings.Contains(string(api.OpenAPI), use) {
			t.Errorf("%s %s is not used", section, line[2])
		}
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
		"/components/schemas/Mode":                                        texts(team.Modes),
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
	doc, err := team.Deployment{Version: "0.9.20", Features: team.Features{WebRTC: true, APIAccess: true}}.Capabilities()
	testkit.Must(t, err)
	const headers = "RateLimit-Policy: \"api\";q=600;w=60\nRateLimit: \"api\";r=1;t=1\nCache-Control: private, no-cache\nETag: \"v1\"\n"
	if failure := check("GET", "/api/v1/runtime/capabilities", 200, headers, string(doc)); failure != "" {
		t.Error(failure)
	}
	if failure := check("GET", "/api/v1/runtime/endpoints/ep_1", 200, headers, string(doc)); !strings.Contains(failure, "missing property 'endpoint'") {
		t.Errorf("capabilities without an endpoint were accepted for an endpoint: %q", failure)
	}
}
