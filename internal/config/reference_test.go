package config

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

func TestReferenceIsUpToDate(t *testing.T) {
	const file = "../../docs/configuration.md"
	if *update {
		if err := os.WriteFile(file, reference(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, reference()) {
		t.Error("docs/configuration.md is outdated: run `make generate`")
	}
}

const intro = `# Configuration

<!-- Generated from internal/config by make generate. -->

Configure telapi with environment variables. There is no configuration file.

` + "```" + `sh
telapi config    # print the effective configuration and its sources, secrets masked
telapi doctor    # check it, and the services it refers to
` + "```" + `

- An empty variable counts as unset. White space around a value is ignored, except in secrets.
- A secret can come from a file, such as a Docker or Kubernetes secret or a systemd credential: the file that ` + "`NAME_FILE`" + ` names holds the value of ` + "`NAME`" + `.
  One line break at its end is removed. Setting both is an error.
- The service does not start with an invalid value or with an unknown variable that starts with ` + "`TELAPI_`" + `. It reports all problems at once.
- ` + "`telapi serve`" + ` requires ` + "`JWT_SECRET`" + `, ` + "`telapi dev`" + ` generates missing values, and administration commands
  require only the settings of the stores. Without ` + "`DATABASE_URL`" + ` and ` + "`REDIS_URL`" + `, ` + "`serve`" + ` also starts on SQLite and the embedded store.
- The OpenTelemetry libraries also read the standard ` + "`OTEL_*`" + ` variables, such as ` + "`OTEL_EXPORTER_OTLP_HEADERS`" + ` (comma-separated ` + "`name=value`" + `
  pairs) and ` + "`OTEL_RESOURCE_ATTRIBUTES`" + `.
`

// reference returns the content of docs/configuration.md.
func reference() []byte {
	var b bytes.Buffer
	b.WriteString(intro)
	section := ""
	for _, s := range settings() {
		if s.section != section {
			section = s.section
			fmt.Fprintf(&b, "\n## %s\n\n| Name | Default | Valid values | Description |\n|---|---|---|---|\n", section)
		}
		def := "none"
		if value := s.tag("default"); value != "" {
			def = "`" + value + "`"
		}
		doc := s.tag("doc")
		if command := s.tag("required"); command != "" {
			doc += " Required by telapi " + command + "."
		}
		name := "`" + s.name + "`"
		if s.secret {
			name += " or `" + s.fileName() + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, def, cell(s.valid(Dev)), cell(doc))
	}
	b.WriteString("\n## Deprecated\n\nA deprecated variable causes a warning at start and a failed check in `telapi doctor`.\n\n| Name | Description |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(deprecated)) {
		fmt.Fprintf(&b, "| `%s` | It %s. |\n", name, cell(deprecated[name]))
	}
	return b.Bytes()
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
