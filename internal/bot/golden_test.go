package bot

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const separator = "\n---\n"

// TestGoldenBodies parses the callback bodies in testdata/golden. Each file has a
// body, a line of three dashes, and the resulting entries and ignored members, or the
// issues. Lines before the body that start with # are comments, or set the route, profile or transaction.
func TestGoldenBodies(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("found %d golden files, want at least 60; error: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(raw), separator)
			got := parseGolden(t, input)
			if *update {
				if err := os.WriteFile(file, []byte(input+separator+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// parseGolden parses the input part of a golden file and returns the output part.
func parseGolden(t *testing.T, input string) string {
	settings := map[string]string{"route": "bot", "profile": "open", "transaction": ""}
	for strings.HasPrefix(input, "#") {
		var line string
		line, input, _ = strings.Cut(input, "\n")
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok {
			settings[name] = value
		}
	}
	base := wire.Entry{ChannelID: "ch-1", At: 1, Trace: wire.Trace{TransactionID: settings["transaction"]}}
	kind := wire.WorkItemKind(settings["route"])
	base.Source = kind.Source()
	result, err := Parse(kind, []byte(input), "ch-1")
	var out strings.Builder
	if err != nil {
		f := fault.From(err)
		out.WriteString(string(f.Code) + "\n")
		issues, _ := f.Details.([]fault.Issue)
		for _, i := range issues {
			out.WriteString(i.Path + " " + i.Code + " " + i.Message + "\n")
		}
		return out.String()
	}
	entries, decisions := result.Entries(base, policy(t, settings["profile"]))
	checkRoundTrip(t, entries)
	for _, e := range entries {
		line, err := e.AppendTo(nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	for _, d := range decisions {
		if len(d.Ignored) > 0 {
			out.WriteString("ignored in " + d.Command.Common().Type + ": " + strings.Join(d.Ignored, ", ") + "\n")
		}
	}
	return out.String()
}

// policy returns the command policy in a file of testdata/profiles.
func policy(t testing.TB, name string) *command.Policy {
	raw, err := os.ReadFile("testdata/profiles/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Profile  wire.GatewayProfile `json:"profile"`
		Platform struct {
			CommandsDisabled       []string `json:"commandsDisabled"`
			TransferAllowedTargets []string `json:"transferAllowedTargets"`
			TransferAllowedHeaders []string `json:"transferAllowedHeaders"`
		} `json:"platform"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	platform, err := command.NewPlatformPolicy(file.Platform.CommandsDisabled, file.Platform.TransferAllowedTargets, file.Platform.TransferAllowedHeaders)
	if err != nil {
		t.Fatal(err)
	}
	return command.NewPolicy(file.Profile, platform)
}

// checkRoundTrip checks that entries are unchanged after encoding and decoding.
func checkRoundTrip(t *testing.T, entries []wire.Entry) {
	for _, e := range entries {
		encoded, err := e.AppendTo(nil)
		if err != nil {
			t.Fatalf("encode %+v: %v", e, err)
		}
		var decoded wire.Entry
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			t.Fatalf("decode %s: %v", encoded, err)
		}
		again, err := json.Marshal(decoded, json.Deterministic(true))
		if err != nil || string(again) != string(encoded) {
			t.Fatalf("round trip of %s: got %s, %v", encoded, again, err)
		}
	}
}
