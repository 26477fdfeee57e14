package bot

import (
	"errors"
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

// TestGoldenBodies reads testdata/golden. Each file has a body, a line of three
// dashes, and the resulting entries or issues. Lines that start with # before the
// body are comments or set route, profile or transaction.
func TestGoldenBodies(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			given, want, _ := strings.Cut(string(raw), separator)
			got := outcome(t, given)
			if *update {
				if err := os.WriteFile(file, []byte(given+separator+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func outcome(t *testing.T, given string) string {
	set := map[string]string{"route": "bot", "profile": "open", "transaction": ""}
	for strings.HasPrefix(given, "#") {
		var line string
		line, given, _ = strings.Cut(given, "\n")
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok {
			set[name] = value
		}
	}
	base := wire.Entry{ChannelID: "ch-1", At: 1, Trace: wire.Trace{TransactionID: set["transaction"]}}
	kind := wire.WorkItemKind(set["route"])
	base.Source = kind.Source()
	result, err := Parse(kind, []byte(given), "ch-1")
	var out strings.Builder
	if err != nil {
		f := fault.From(err)
		out.WriteString(string(f.Code) + "\n")
		var e *fault.Error
		if issues, ok := f.Details.([]fault.Issue); ok && errors.As(err, &e) {
			for _, i := range issues {
				out.WriteString(i.Path + " " + i.Code + " " + i.Message + "\n")
			}
		}
		return out.String()
	}
	entries := result.Entries(base, policy(t, set["profile"]))
	encode(t, entries)
	for _, e := range entries {
		line, err := e.AppendTo(nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	return out.String()
}

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
		} `json:"platform"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	platform, err := command.NewPlatformPolicy(file.Platform.CommandsDisabled, file.Platform.TransferAllowedTargets)
	if err != nil {
		t.Fatal(err)
	}
	return command.NewPolicy(file.Profile, platform)
}

// encode checks that entries survive encoding and decoding.
func encode(t *testing.T, entries []wire.Entry) {
	for _, e := range entries {
		written, err := e.AppendTo(nil)
		if err != nil {
			t.Fatalf("write %+v: %v", e, err)
		}
		var back wire.Entry
		if err := json.Unmarshal(written, &back); err != nil {
			t.Fatalf("read %s: %v", written, err)
		}
		again, err := json.Marshal(back, json.Deterministic(true))
		if err != nil || string(again) != string(written) {
			t.Fatalf("%s came back as %s, %v", written, again, err)
		}
	}
}
