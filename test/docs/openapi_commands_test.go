package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/test/testkit"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	testkit.Must(t, err)
	return string(text)
}

// The header is part of the contract with providers, but not an API parameter.
func TestOpenAPIOmitsTransactionHeader(t *testing.T) {
	if strings.Contains(readFile(t, "api/openapi.yaml"), "bot-trace-transaction-id") {
		t.Error("api/openapi.yaml contains bot-trace-transaction-id")
	}
}

func TestControlEventsOfCommandsPageAreValid(t *testing.T) {
	examples := regexp.MustCompile("(?s)```json\n([^`]*\"custom\"[^`]*)```").FindAllStringSubmatch(readFile(t, "docs/commands.md"), -1)
	var shown []string
	for _, e := range examples {
		body := `{"conversation":{"identifier":{"id":"call-4711"}},"messages":{"timestamp":"2026-11-15T09:30:00Z","message":[` + e[1] + `]}}`
		if _, err := callback.Parse(wire.BotItem, []byte(body), "call-4711"); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		shown = append(shown, regexp.MustCompile(`"name": "(\w+)", "value"`).FindStringSubmatch(e[1])[1])
	}
	if want := []string{"hangup", "transfer", "handover", "config"}; !slices.Equal(shown, want) {
		t.Errorf("docs/commands.md shows the control events %v, want %v", shown, want)
	}
}

func TestCommandsPageListsDenialReasons(t *testing.T) {
	page := readFile(t, "docs/commands.md")
	block, _, _ := strings.Cut(readFile(t, "internal/command/policy.go"), ")\n\n// PlatformPolicy")
	reasons := regexp.MustCompile(`= "([a-z_]+)"`).FindAllStringSubmatch(block, -1)
	if len(reasons) < 10 {
		t.Fatalf("found %d denial reasons in internal/command/policy.go, want at least 10", len(reasons))
	}
	var inCode []string
	for _, r := range reasons {
		inCode = append(inCode, r[1])
	}
	_, section, _ := strings.Cut(page, "\n## Denied commands\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^- `([a-z_]+)`: ").FindAllStringSubmatch(section, -1) {
		listed = append(listed, row[1])
	}
	if slices.Sort(inCode); !slices.Equal(slices.Sorted(slices.Values(listed)), inCode) {
		t.Errorf("docs/commands.md lists the denial reasons %q, want %q", listed, inCode)
	}
}
