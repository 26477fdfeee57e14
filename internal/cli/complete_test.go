package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/internal/calls"
	"telapi/test/harness"
)

func TestCompletionOffersValuesAndIDs(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	acme, other := harness.NewTenant(t, i, "Acme"), harness.NewTenant(t, i, "Other")
	_, err := harness.StartRuntime(t, env).Open(t.Context(), calls.OpenOptions{ChannelID: "call-1", TeamID: acme.Team.ID, EndpointID: acme.Endpoint.ID})
	if err != nil {
		t.Fatal(err)
	}
	complete := func(dataDir string, words ...string) string {
		var out, problems bytes.Buffer
		Run(t.Context(), Console{Args: append([]string{"__complete"}, words...), Env: []string{"DATA_DIR=" + dataDir}, Out: &out, Err: &problems})
		return out.String()
	}
	for line, want := range map[string][]string{
		"key create --scope ":     {"READ_TEAM_APPS", "MANAGE_PLATFORM"},
		"endpoint create --mode ": {"webrtc", "audio", "chat"},
		"limits set --tier ":      {"api", "webhook", "auth"},
		"callback issue --kind ":  {"bot", "llm", "tool"},
		"callback issue --scope ": {"work_item", "channel"},
		"usage --group-by ":       {"voice"},
		"key create --team ":      {acme.Team.ID + "\tAcme", other.Team.ID + "\tOther"},
		"team show ":              {acme.Team.ID, other.Team.ID},
		"quota set ":              {acme.Team.ID},
		"quota set x ":            {"default"},
		"key revoke ":             {acme.KeyID, other.KeyID},
		"endpoint show ":          {acme.Endpoint.ID + "\tAcme", other.Endpoint.ID},
		"channel open c --team " + other.Team.ID + " --endpoint ": {other.Endpoint.ID},
		"channel tail ":             {"call-1"},
		"callback issue --channel ": {"call-1"},
		"help te":                   {"team"},
		"help team sh":              {"show"},
		"comp":                      {"completion"},
	} {
		words := strings.Split(line, " ")
		if got := complete(env["DATA_DIR"], words...); !containsAll(got, want) {
			t.Errorf("telapi %s: offered\n%swant %q", line, got, want)
		}
	}
	if got := complete(env["DATA_DIR"], "channel", "open", "c", "--team", other.Team.ID, "--endpoint", ""); strings.Contains(got, acme.Endpoint.ID) {
		t.Errorf("offered the endpoint of another team:\n%s", got)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if got := complete(empty, "team", "show", ""); !strings.HasPrefix(got, ":4\n") { // no files
		t.Errorf("without a database: offered\n%swant nothing", got)
	}
	if _, err := os.Stat(empty); !os.IsNotExist(err) {
		t.Errorf("completion has created the data directory: %v", err)
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
