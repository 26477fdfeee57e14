package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { testkit.Main(m) }

// mistakes are command lines with the mistakes that people make first. Words that
// start with $ stand for values of the fixture, also in the golden files.
var mistakes = map[string]string{
	"command-misspelled":           "tem list",
	"command-of-another-program":   "start",
	"command-unknown":              "frobnicate",
	"subcommand-missing":           "team",
	"subcommand-unknown":           "team make",
	"help-of-unknown-command":      "help frobnicate",
	"help-of-unknown-subcommand":   "help team make",
	"completion-for-unknown-shell": "completion tcsh",
	"flag-misspelled":              "key create --team $TEAM --scpoe READ_TEAM_APPS",
	"flag-unknown":                 "team create Acme --colour",
	"flag-without-value":           "key create --team",
	"flag-for-port":                "dev --port 4000",
	"flag-for-port-of-media":       "media --port 4000",
	"session-unknown":              "session tail nope",
	"flag-with-one-dash":           "team list -json",
	"flag-bool-with-text":          "team list --json=maybe",

	"team-without-name":         "team create",
	"team-with-empty-name":      "team create ''",
	"team-name-without-quotes":  "team create Acme Ltd",
	"team-unknown":              "team show tm_none",
	"team-list-in-empty-folder": "DATA_DIR=$DIR/empty team list",
	"key-without-scope":         "key create --team $TEAM",
	"key-with-unknown-scope":    "key create --team $TEAM --scope ADMIN",
	"key-for-unknown-team":      "key create --team tm_none --scope READ_TEAM_APPS",
	"key-that-has-expired":      "key create --team $TEAM --scope READ_TEAM_APPS --expires-in -1h",
	"key-lifetime-in-days":      "key create --team $TEAM --scope READ_TEAM_APPS --expires-in 30d",
	"key-revoke-unknown":        "key revoke none",
	"key-revoke-unknown-secret": "key revoke $OTHERKEY",
	"endpoint-with-wrong-mode":  "endpoint create --team $TEAM --name Shop --mode video",
	"endpoint-with-wrong-host":  "endpoint create --team $TEAM --name Shop --mode chat --origin shop.example",
	"endpoint-unknown":          "endpoint update ep_none --enabled=false",
	"profile-missing":           "endpoint create --team $TEAM --name Shop --mode chat --profile $DIR/none.json",
	"profile-malformed":         "endpoint create --team $TEAM --name Shop --mode chat --profile $DIR/malformed.json",
	"profile-invalid":           "endpoint create --team $TEAM --name Shop --mode chat --profile $DIR/invalid-profile.json",
	"profile-is-a-folder":       "endpoint create --team $TEAM --name Shop --mode chat --profile $DIR",

	"limits-window-without-unit": "limits set --tier api --max 600 --window 60",
	"limits-window-too-short":    "limits set --tier api --max 600 --window 1ms",
	"limits-unknown-tier":        "limits set --tier sockets --max 600",
	"limits-of-zero":             "limits set --tier api --max 0",
	"limits-without-max":         "limits set --tier api",
	"quota-negative":             "quota set $TEAM -5",
	"quota-text":                 "quota set $TEAM unlimited",
	"quota-too-large":            "quota set $TEAM 9999999999",
	"usage-with-wrong-date":      "usage --team $TEAM --from 01.10.2026",
	"usage-with-wrong-interval":  "usage --team $TEAM --interval week",
	"usage-without-team":         "usage --from 2026-10-01",
	"audit-with-wrong-time":      "audit --from yesterday",

	"channel-unknown":               "channel tail nope",
	"channel-with-wrong-id":         "channel tail a{b}",
	"channel-from-garbage":          "channel tail $CHANNEL --from start",
	"channel-without-server":        "DATA_DIR=$DIR/empty channel tail $CHANNEL",
	"channel-of-another-team":       "channel open call-2 --team tm_none --endpoint $ENDPOINT",
	"channel-payload-not-an-object": "channel send $CHANNEL --payload hello",
	"channel-with-wrong-type":       "channel send $CHANNEL --type text --payload {}",
	"callback-ttl-without-unit":     "callback issue --channel $CHANNEL --ttl 300",
	"callback-ttl-too-long":         "callback issue --channel $CHANNEL --ttl 48h",
	"callback-unknown-kind":         "callback issue --channel $CHANNEL --kind human",
	"lint-missing-file":             "callback lint $DIR/none.json",
	"lint-malformed":                "callback lint $DIR/malformed.json",
	"lint-invalid":                  "callback lint $DIR/invalid-body.json",
	"lint-misspelled-member":        "callback lint $DIR/misspelled-body.json --strict",

	"speech-malformed-key":     "speech warm $DIR/texts.txt --key tk_bad --url $URL",
	"speech-wrong-key":         "speech warm $DIR/texts.txt --key $OTHERKEY --url $URL",
	"speech-key-without-scope": "speech warm $DIR/texts.txt --key $READER --url $URL",
	"speech-without-server":    "speech warm $DIR/texts.txt --key $OTHERKEY --url http://127.0.0.1:1",
	"speech-wrong-url":         "speech warm $DIR/texts.txt --key $OTHERKEY --url localhost:3001",
	"speech-unknown-voice":     "speech warm $DIR/texts.txt --key $OTHERKEY --url $ESPEAK --voice alloy",
	"speech-malformed-line":    "speech warm $DIR/malformed.json --key $OTHERKEY --url $URL",
	"speech-missing-key-file":  "speech warm $DIR/texts.txt --key @$DIR/none.txt --url $URL",

	"health-without-server":       "TELAPI_PORT=1 health",
	"health-of-media":             "MEDIA_PORT=1 health --media",
	"serve-without-secret":        "serve",
	"serve-with-wrong-settings":   "TELAPI_PORT=http TELAPI_PROT=3001 LOG_LEVEL=loud JWT_SECRET=short serve",
	"serve-on-port-in-use":        "JWT_SECRET=$SECRET DATA_DIR=$DIR/other TELAPI_HOST=127.0.0.1 TELAPI_PORT=$PORT serve",
	"serve-second-in-folder":      "JWT_SECRET=$SECRET TELAPI_PORT=0 serve",
	"dev-with-remote-bot":         "dev --bot https://bot.example/",
	"dev-with-many-instances":     "dev --instances 9",
	"dev-with-instances-as-text":  "dev --instances two",
	"dev-with-bot-and-no-demo":    "dev --no-demo --bot http://127.0.0.1:8080/",
	"database-unreachable":        "DATABASE_URL=postgres://telapi:hunter2@127.0.0.1:1/telapi team list",
	"database-with-wrong-scheme":  "DATABASE_URL=mysql://telapi:hunter2@localhost/telapi team list",
	"database-without-slashes":    "DATABASE_URL=localhost:5432 team list",
	"redis-unreachable":           "REDIS_URL=redis://:hunter2@127.0.0.1:1 channel list",
	"redis-unreachable-in-tail":   "REDIS_URL=redis://127.0.0.1:1 channel tail $CHANNEL",
	"redis-with-http":             "REDIS_URL=http://127.0.0.1:6379 channel list",
	"media-gc-without-media":      "media gc",
	"doctor-in-empty-folder":      "DATA_DIR=$DIR/empty TELAPI_PORT=1 doctor",
	"doctor-with-other-secret":    "JWT_SECRET=$SECRET DATA_DIR=$DIR/empty TELAPI_PORT=1 doctor --jwt-fingerprint 00000000",
	"doctor-with-wrong-settings":  "RATE_LIMIT_MAX=5 JWT_SECRET=short TELAPI_PORT=http doctor",
	"migrate-status-empty-folder": "DATA_DIR=$DIR/empty migrate --status",
}

// TestMistakes compares the whole output of a mistake with a golden file: it says what
// is wrong, with the value, and what to do.
func TestMistakes(t *testing.T) {
	if len(mistakes) < 40 {
		t.Fatalf("%d mistakes, want at least 40", len(mistakes))
	}
	values := mistakesFixture(t)
	for name, line := range mistakes {
		t.Run(name, func(t *testing.T) {
			var env, args []string
			for _, word := range strings.Fields(line) {
				word = strings.Trim(replaceAll(word, values, false), "'")
				if name, _, ok := strings.Cut(word, "="); ok && len(args) == 0 && name == strings.ToUpper(name) {
					env = append(env, word)
				} else {
					args = append(args, word)
				}
			}
			var stdout, stderr bytes.Buffer
			code := (&cli{
				Program: "telapi", Args: args, Env: append([]string{"OTEL_ENABLED=false", "DATA_DIR=" + values["$DIR"] + "/data"}, env...), Out: &stdout, Err: &stderr,
			}).execute(t.Context())
			got := fmt.Sprintf("$ telapi %s\n", line)
			if before, after, ok := strings.Cut(line, args[0]); ok && before != "" {
				got = fmt.Sprintf("$ %stelapi %s%s\n", before, args[0], after)
			}
			if stdout.Len() > 0 {
				got += "--- stdout\n" + replaceAll(stdout.String(), values, true)
			}
			if stderr.Len() > 0 {
				got += "--- stderr\n" + replaceAll(stderr.String(), values, true)
			}
			got += fmt.Sprintf("--- exit %d\n", code)
			compareGolden(t, filepath.Join("testdata", "mistakes", name+".txt"), got)
		})
	}
	if _, err := os.Stat(filepath.Join(values["$DIR"], "empty")); !os.IsNotExist(err) {
		t.Errorf("a command has created the data directory: %v", err)
	}
	files, err := filepath.Glob("testdata/mistakes/*.txt")
	if err != nil || len(files) != len(mistakes) {
		t.Errorf("%d golden files for %d mistakes: remove the others", len(files), len(mistakes))
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("%v; got:\n%s\nwant:\n%s", err, got, want)
	}
}

// mistakesFixture starts a server and returns the values of the words in mistakes.
func mistakesFixture(t *testing.T) map[string]string {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"texts.txt":            "Good morning\n",
		"malformed.json":       "{\"commandSources\": [\"bot\",]}\n",
		"invalid-profile.json": `{"commandSources":["human"],"commandPolicies":[{"type":"dance","enabled":"yes"}]}`,
		"invalid-body.json":    `{"messages":{"timestamp":"today","message":[{}]}}`,
		"misspelled-body.json": `{"conversation":{"identifier":{"id":"call-1"}},"action":[{"type":"hangup"}]}`,
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	env := harness.Env{"DATA_DIR": filepath.Join(dir, "data"), "TELAPI_HOST": "127.0.0.1"}
	i := harness.Start(t, env)
	tenant := harness.NewTenant(t, i, "tenant")
	readerID, reader := harness.NewKey(t, i, tenant.Team.ID, "READ_TEAM_APPS")
	testkit.Must(t, testkit.ErrorOf(harness.StartRuntime(t, i).Open(t.Context(), "call-1", wire.Open{Team: tenant.Team.ID, Endpoint: tenant.Endpoint.ID})))
	espeak := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"providers":[{"name":"espeak","voices":["de","en-gb","fr"]}]}`))
	}))
	t.Cleanup(espeak.Close)
	address, err := url.Parse(i.URL)
	testkit.Must(t, err)
	port, err := strconv.Atoi(address.Port())
	testkit.Must(t, err)
	return map[string]string{
		"$DIR": dir, "$URL": i.URL, "$PORT": address.Port(), "$OTHERPORT": strconv.Itoa(port + 10), "$ESPEAK": espeak.URL, "$PID": strconv.Itoa(os.Getpid()),
		"$TEAM": tenant.Team.ID, "$ENDPOINT": tenant.Endpoint.ID, "$CHANNEL": "call-1", "$SECRET": harness.Secret,
		"$READER": reader, "$READERID": readerID, "$OTHERKEY": "tk_abc123_" + strings.Repeat("s3cret-", 6) + "x",
	}
}

// replaceAll replaces words by their values, or values by their words. Longer ones are
// replaced first, because they may contain others.
func replaceAll(text string, values map[string]string, byWords bool) string {
	var pairs [][2]string
	for word, value := range values {
		if byWords {
			word, value = value, word
		}
		pairs = append(pairs, [2]string{word, value})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
	for _, p := range pairs {
		text = strings.ReplaceAll(text, p[0], p[1])
	}
	return text
}
