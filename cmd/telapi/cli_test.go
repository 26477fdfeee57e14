package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestInterruptEndsReadFromTerminal(t *testing.T) {
	for _, args := range [][]string{
		{"callback", "lint", "-"},
		{"speech", "warm", "-", "--key", "tk_x_" + strings.Repeat("x", 43)},
	} {
		terminal, keyboard := io.Pipe()
		t.Cleanup(func() { _ = keyboard.Close() })
		ctx, interrupt := context.WithCancel(t.Context())
		exit := make(chan int, 1)
		go func() {
			exit <- (&cli{Args: args, In: terminal, Out: io.Discard, Err: &bytes.Buffer{}}).execute(ctx)
		}()
		_, _ = io.WriteString(keyboard, "{") // returns when the command has read it and waits for more
		interrupt()
		select {
		case code := <-exit:
			testkit.Equal(t, fmt.Sprintf("%v: exit code", args), code, exitFailed)
		case <-time.After(30 * time.Second):
			t.Fatalf("%v did not exit after an interrupt", args)
		}
	}
}

func TestByteOrderMarkIsNotPartOfFirstText(t *testing.T) {
	c := &cli{In: strings.NewReader("\ufeff{\"text\":\"Hi\"}\n")}
	requests, err := c.readWarmRequests(t.Context(), "-", map[string]any{})
	if err != nil || len(requests) != 1 || string(requests[0].body) != `{"text":"Hi"}` {
		t.Errorf("got requests %v, %v, want the object", requests, err)
	}
}

func TestNotFoundErrorHasIDWithoutSecret(t *testing.T) {
	secret := strings.Repeat("s3cret-", 6) + "x"
	for id, want := range map[string]string{
		"":                    `API key "" not found`,
		"id":                  "API key id not found",
		"id\x1b[31m":          "API key id\ufffd[31m not found",
		"tk_abc123_" + secret: "API key tk_abc123_[redacted] not found",
	} {
		want += ": telapi key list shows all"
		if err := withID(fault.New(fault.NotFound, "The API key was not found."), "API key", id); err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
}

func TestColours(t *testing.T) {
	for name, tt := range map[string]struct {
		env  []string
		want bool
	}{
		"not a terminal":                 {nil, false},
		"FORCE_COLOR":                    {[]string{"FORCE_COLOR=1"}, true},
		"FORCE_COLOR=0":                  {[]string{"FORCE_COLOR=0"}, false},
		"FORCE_COLOR without a value":    {[]string{"FORCE_COLOR="}, false},
		"NO_COLOR":                       {[]string{"NO_COLOR=1"}, false},
		"FORCE_COLOR overrides NO_COLOR": {[]string{"NO_COLOR=1", "FORCE_COLOR=1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			env := append(tt.env, "JWT_SECRET=short", "DATA_DIR="+t.TempDir(), "TELAPI_PORT=1")
			for _, args := range [][]string{{"team", "make"}, {"config"}, {"doctor"}} {
				var out, problems bytes.Buffer
				(&cli{Args: args, Env: env, Out: &out, Err: &problems}).execute(t.Context())
				if got := strings.Contains(out.String()+problems.String(), "\x1b["); got != tt.want {
					t.Errorf("%v: colours %v, want %v\n%s%s", args, got, tt.want, &out, &problems)
				}
			}
			var out bytes.Buffer
			(&cli{Args: []string{"version", "--json"}, Env: env, Out: &out, Err: io.Discard}).execute(t.Context())
			if strings.Contains(out.String(), "\x1b[") {
				t.Errorf("JSON has colours: %s", &out)
			}
		})
	}
}

func TestTableHeaderIsBold(t *testing.T) {
	var out bytes.Buffer
	c := &cli{Out: &out, Env: []string{"FORCE_COLOR=1"}}
	for want, value := range map[string]any{
		"\x1b[1mID  DAILY QUOTA\x1b[0m\na   50000\n": newTable(items[:1], "id", "dailyQuota"),
		"\x1b[1mdaily quota\x1b[0m  7\n": struct {
			DailyQuota int64 `json:"dailyQuota"`
		}{7},
	} {
		out.Reset()
		if err := c.print(value); err != nil || out.String() != want {
			t.Errorf("printed %q (%v), want %q", &out, err, want)
		}
	}
}

func TestCompletionOffersValuesAndIDs(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	acme, other := harness.NewTenant(t, i, "Acme"), harness.NewTenant(t, i, "Other")
	testkit.Must(t, testkit.ErrorOf(harness.StartRuntime(t, i).Open(t.Context(), "call-1", wire.Open{Team: acme.Team.ID, Endpoint: acme.Endpoint.ID})))
	complete := func(dataDir string, words ...string) string {
		var out, problems bytes.Buffer
		(&cli{Args: append([]string{"__complete"}, words...), Env: []string{"DATA_DIR=" + dataDir}, Out: &out, Err: &problems}).execute(t.Context())
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

type item struct {
	ID         string    `json:"id"`
	DailyQuota int64     `json:"dailyQuota"`
	Origins    []string  `json:"origins"`
	CreatedAt  time.Time `json:"createdAt"`
	Name       *string   `json:"name"`
}

var items = []item{
	{"a", 50000, []string{"x", "y"}, time.Date(2026, 11, 15, 11, 11, 37, 539_000_000, time.FixedZone("", 3600)), new("controls\x1b[31m\nthe terminal")},
	{"b", 7, nil, time.Time{}, nil},
}

// printed returns the output of print.
func printed(t *testing.T, asJSON bool, v any) string {
	t.Helper()
	var out bytes.Buffer
	c := &cli{Out: &out, json: asJSON}
	testkit.Must(t, c.print(v))
	return out.String()
}

func TestPrintFormatsText(t *testing.T) {
	for name, tt := range map[string]struct {
		value any
		want  string
	}{
		"one object": {items[0], "id           a\n" +
			"daily quota  50000\n" +
			"origins      x,y\n" +
			"created at   2026-11-15T10:11:37Z\n" +
			"name         controls�[31m�the terminal\n"},
		"zero-width joiners": {item{ID: "👩\u200d👧 می\u200cخواهم \u202eback"}, "id           👩\u200d👧 می\u200cخواهم �back\n" +
			"daily quota  0\norigins      none\ncreated at   0001-01-01T00:00:00Z\nname         \n"},
		"zero values": {items[1], "id           b\ndaily quota  7\norigins      none\ncreated at   0001-01-01T00:00:00Z\nname         \n"},
		"table":       {newTable(items, "id", "dailyQuota", "origins"), "ID  DAILY QUOTA  ORIGINS\na   50000        x,y\nb   7            none\n"},
		"empty table": {newTable([]item(nil), "id"), "none\n"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Equal(t, "printed", printed(t, false, tt.value), tt.want)
		})
	}
}

func TestPrintFormatsJSON(t *testing.T) {
	want := `{"id":"a","dailyQuota":50000,"origins":["x","y"],"createdAt":"2026-11-15T10:11:37.539Z","name":"controls\u001b[31m\nthe terminal"}` + "\n" +
		`{"id":"b","dailyQuota":7,"origins":[],"createdAt":"0001-01-01T00:00:00.000Z","name":null}` + "\n"
	testkit.Equal(t, "printed", printed(t, true, newTable(items, "id")), want)
	testkit.Equal(t, "empty table: printed", printed(t, true, newTable([]item(nil), "id")), "")
}
