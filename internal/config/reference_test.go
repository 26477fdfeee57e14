package config

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/test/testkit"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

func TestReferenceIsUpToDate(t *testing.T) {
	const file = "../../docs/configuration.md"
	if *update {
		testkit.Must(t, os.WriteFile(file, reference(), 0o644))
	}
	got, err := os.ReadFile(file)
	testkit.Must(t, err)
	if !bytes.Equal(got, reference()) {
		t.Error("docs/configuration.md is outdated: run `make generate`")
	}
}

const intro = `# Configuration

<!-- Generated from internal/config by make generate. -->

Configure telapi with environment variables. Print the effective values and their sources, and test the servers that they name:

` + "```" + `sh
telapi config
telapi doctor
` + "```" + `

Start with these ten. Below, all settings have their ` + "`default`" + ` and valid values in parentheses.

| Name | Set it to |
|---|---|
| ` + "`JWT_SECRET`" + ` | the web console's secret; ` + "`telapi serve`" + ` requires it |
| ` + "`DATABASE_URL`, `REDIS_URL`" + ` | your stores |
| ` + "`KV_MIN_REPLICAS`" + ` | 1, if Redis has replicas and no failover may lose data |
| ` + "`PUBLIC_URL`, `TRUSTED_PROXIES`" + ` | the address of your load balancer for clients, and for telapi |
| ` + "`SPEECH_PROVIDERS`, `TTS_MEDIA_CACHE_BASE_URL`" + ` | who synthesizes speech, and where it is cached |
| ` + "`WEBRTC_ICE_SERVERS`" + ` | STUN and TURN servers for calls from browsers |
| ` + "`METRICS_TOKEN`" + ` | what Prometheus sends |

- Separate the items of a list with commas. An empty variable counts as unset. White space around a value is ignored, except in secrets.
- A secret (*) can come from a file that ` + "`NAME_FILE`" + ` names. One line break at its end is removed. Setting both is an error.
- An invalid value, or an unknown name that starts with ` + "`TELAPI_`" + `, prevents the start. All problems are reported at once.
- The standard variables of OpenTelemetry, such as ` + "`OTEL_EXPORTER_OTLP_HEADERS`" + `, work too.
`

// reference returns the content of docs/configuration.md.
func reference() []byte {
	var b bytes.Buffer
	b.WriteString(intro)
	section := ""
	for _, s := range settings() {
		if s.section != section {
			section = s.section
			fmt.Fprintf(&b, "\n## %s\n\n", section)
		}
		doc := s.Tag.Get("doc")
		if command := s.Tag.Get("required"); command != "" {
			doc += " Required by telapi " + command + "."
		}
		name := "**`" + s.name + "`**"
		if s.secret {
			name += "\\*"
		}
		if values := s.values(); values != "" {
			name += " (" + values + ")"
		}
		fmt.Fprintf(&b, "- %s: %s\n", name, doc)
	}
	fmt.Fprintf(&b, "\n## Deprecated\n\n`%s` cause a warning at start and a failed check in `telapi doctor`. Each %s.\n",
		strings.Join(slices.Sorted(maps.Keys(deprecated)), "` and `"), limitsMoved)
	return b.Bytes()
}

// values returns the default and the valid values of a setting. A bool has the obvious ones.
func (s setting) values() string {
	valid := shorten.Replace(s.valid(Dev))
	switch s.Type {
	case reflect.TypeFor[bool]():
		valid = ""
	case reflect.TypeFor[int](), reflect.TypeFor[int64](), reflect.TypeFor[time.Duration]():
		valid = strings.Replace(valid, " to ", "–", 1)
	}
	def := s.Tag.Get("default")
	if def == "" {
		return valid
	}
	if s.oneof != nil {
		return strings.Replace(valid, def, "`"+def+"`", 1)
	}
	valid, _, _ = strings.Cut(valid, ", such as "+def)
	return strings.TrimSuffix("`"+def+"`, "+valid, ", ")
}

// shorten makes the texts of error messages fit into a column.
var shorten = strings.NewReplacer("any text", "", "an integer from ", "", "a duration from ", "", ", such as the output of openssl rand -base64 32", "",
	"a URL with ", "", " and a host, without user, query and fragment", "", " and a host, with special characters in user and password percent-encoded", "",
	"a comma-separated list without duplicates of ", "a list of ", "comma-separated ", "", ", each a scheme and a host, such as https://console.example or http://localhost:8080", ", such as https://console.example")
