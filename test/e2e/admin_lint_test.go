package e2e

import (
	"fmt"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
)

const lintedBody = `{"conversation":{"identifier":{"id":"call-1"}},"mesages":{},
	"messages":{"message":[{"content":{"textMessage":{"textPlain":"Goodbye."}}}]},
	"actions":[{"type":"hangup","commandId":"c1","resaon":"done"},{"type":"transfer","commandId":"c2","target":"tel:+49301"}]}`

func TestLintReportsEntriesDecisionsAndWarnings(t *testing.T) {
	i := harness.Start(t, nil)
	tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
	profile := `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true,"waitForSilense":true}]}`
	call[object](t, i, "PUT", "endpoints/"+tenant.Endpoint.ID, fmt.Sprintf(`{"name":"Shop","modes":["chat"],"gatewayProfile":%s}`, profile), 200)
	manager := []string{"Authorization", "Bearer " + consoleJWT(t, tenant.Team.ID, auth.ManageTeam)}
	lint := func(members string) (int, string) {
		resp, body := i.Post(t, adminPath+"callbacks/lint", `{"kind":"bot",`+members+`}`, manager...)
		return resp.StatusCode, body
	}
	allowed := []string{`"decision":"allowed"`, `"ignored":["resaon"]`, `"kind":"bot_message"`, `"kind":"command"`, `"kind":"command_denied"`, `"path":"/body/mesages"`, `"path":"/body/actions/0/resaon"`}
	for _, c := range []struct {
		name, members string
		status        int
		want          []string
	}{
		{"endpoint", fmt.Sprintf(`"body":%s,"endpointId":%q`, lintedBody, tenant.Endpoint.ID), 200, allowed},
		{"profile", fmt.Sprintf(`"body":%s,"profile":%s`, lintedBody, profile), 200, append(allowed, `"path":"/profile/commandPolicies/0/waitForSilense"`)},
		{"no profile", `"body":` + lintedBody, 200, []string{`"decision":"denied"`, `"type":"hangup"`}},
		{"invalid body", `"body":{"messages":{"message":[{"content":{}}]}}`, 400, []string{code("VALIDATION_ERROR"), `"path":"/conversation/identifier/id"`}},
		{"invalid profile", `"body":{},"profile":{"commandSources":["mars"]}`, 400, []string{`"path":"/profile/commandSources/0"`}},
		{"both", fmt.Sprintf(`"body":{},"endpointId":%q,"profile":{}`, tenant.Endpoint.ID), 400, []string{`"path":"/profile"`}},
		{"foreign endpoint", fmt.Sprintf(`"body":%s,"endpointId":%q`, lintedBody, foreign.Endpoint.ID), 404, []string{code("NOT_FOUND")}},
		{"large body", `"body":{"conversation":{"identifier":{"id":"call-1"}},"metadata":{"x":"` + strings.Repeat("x", 900<<10) + `"}}`, 200, []string{`"kind":"metadata"`}},
		{"stream", fmt.Sprintf(`"contentType":"application/x-ndjson","body":%q,"profile":%s`, delta("Bye. Now")+`{"done":true,"actions":{"type":"hangup"},"acton":1}`, profile), 200,
			[]string{`"part":1`, `"text":"Bye."`, `"parts":2`, `"decision":"allowed"`, `"path":"/body/acton"`}},
		{"deltas", fmt.Sprintf(`"contentType":"application/x-ndjson","split":"none","body":%q`, delta("Bye. Now")+doneLine), 200, []string{`"text":"Bye. Now"`}},
		{"incomplete stream", fmt.Sprintf(`"contentType":"text/event-stream","body":%q`, "data: {}\n\n"), 400, []string{code("MALFORMED_JSON")}},
		{"stream that is no string", `"contentType":"text/event-stream","body":{}`, 400, []string{`"path":"/body"`}},
		{"too large", `"body":"` + strings.Repeat("x", 1200<<10) + `"`, 413, []string{code("PAYLOAD_TOO_LARGE")}},
	} {
		if status, body := lint(c.members); status != c.status || !containsAll(body, c.want...) {
			t.Errorf("%s: got %d %.2000s, want %d %q", c.name, status, body, c.status, c.want)
		}
	}
}
