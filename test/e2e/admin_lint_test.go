package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
		{"too large", `"body":"` + strings.Repeat("x", 1200<<10) + `"`, 413, []string{code("PAYLOAD_TOO_LARGE")}},
	} {
		if status, body := lint(c.members); status != c.status || !containsAll(body, c.want...) {
			t.Errorf("%s: got %d %.2000s, want %d %q", c.name, status, body, c.status, c.want)
		}
	}

	// The command line reports the same entries.
	file := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(file, []byte(lintedBody), 0o600); err != nil {
		t.Fatal(err)
	}
	_, body := lint(`"body":` + lintedBody)
	r := telapi(t, harness.Env{"DATA_DIR": t.TempDir()}, "callback", "lint", file, "--json")
	for line := range strings.Lines(r.stdout) {
		entry, _, _ := strings.Cut(line, `"at":`) // the time differs
		if !strings.Contains(body, entry) {
			t.Errorf("telapi callback lint prints %s, which is not in %s", line, body)
		}
	}
	if strings.Count(r.stdout, "\n") != strings.Count(body, `"channelId"`) {
		t.Errorf("telapi callback lint prints\n%s, want the entries of %s", r.stdout, body)
	}
}

func TestEndpointResponseWarnsAboutProfile(t *testing.T) {
	i := harness.Start(t, nil)
	tenant := harness.NewTenant(t, i, "tenant")
	const misspelled = `{"name":"Shop","modes":["chat"],"gatewayProfile":{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTarget":["tel:+49*"]}]}}`
	const path = "/gatewayProfile/commandPolicies/0/allowedTarget"
	created := call[object](t, i, "POST", "teams/"+tenant.Team.ID+"/endpoints", misspelled, 201)
	id := created["id"].(string)
	for what, e := range map[string]object{"POST": created, "PUT": call[object](t, i, "PUT", "endpoints/"+id, misspelled, 200)} {
		if text := fmt.Sprint(e["warnings"]); !containsAll(text, path, "Did you mean \"allowedTargets\"?") {
			t.Errorf("%s: warnings are %s, want one for %s", what, text, path)
		}
	}
	read := call[object](t, i, "GET", "endpoints/"+id, "", 200)
	read["gatewayProfile"], read["warnings"] = object{}, created["warnings"] // a client may send what it received
	body, err := json.Marshal(read)
	if err != nil {
		t.Fatal(err)
	}
	if replaced := call[object](t, i, "PUT", "endpoints/"+id, string(body), 200); replaced["warnings"] != nil {
		t.Errorf("valid profile: warnings are %v, want none", replaced["warnings"])
	}
}
