package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
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
			exit <- Run(ctx, Console{Args: args, In: terminal, Out: io.Discard, Err: &bytes.Buffer{}})
		}()
		_, _ = io.WriteString(keyboard, "{") // returns when the command has read it and waits for more
		interrupt()
		select {
		case code := <-exit:
			if code != exitFailed {
				t.Errorf("%v: exit code %d, want %d", args, code, exitFailed)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%v did not exit after an interrupt", args)
		}
	}
}

func TestUsageErrorsNameProblemAndFix(t *testing.T) {
	for want, args := range map[string][]string{
		"missing subcommand: use create, list, show or update":        {"team"},
		`unknown subcommand "make": use create, list, show or update`: {"team", "make"},
		"missing argument NAME":                                       {"team", "create"},
		`unexpected argument "x": quote a value that contains spaces`: {"media", "x"},
		`invalid --window "60": use a duration such as 60s or 1m`:     {"limits", "set", "--tier", "api", "--max", "1", "--window", "60"},
		`invalid --max "many": use an integer`:                        {"limits", "set", "--tier", "api", "--max", "many"},
		`invalid --kind "human": use bot, llm or tool`:                {"callback", "lint", "body.json", "--kind", "human"},
		`invalid --follow "perhaps": use true or false`:               {"channel", "tail", "c", "--follow=perhaps"},
	} {
		var stderr bytes.Buffer
		code := Run(t.Context(), Console{Args: args, Out: io.Discard, Err: &stderr})
		if line, _, _ := strings.Cut(stderr.String(), "\n"); code != exitUsage || line != "telapi: "+want {
			t.Errorf("%v: exit code %d with %q, want %d with %q", args, code, line, exitUsage, "telapi: "+want)
		}
	}
}

func TestNotFoundErrorHasIDWithoutSecret(t *testing.T) {
	secret := strings.Repeat("s3cret-", 6) + "x"
	for id, want := range map[string]string{
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
				Run(t.Context(), Console{Args: args, Env: env, Out: &out, Err: &problems})
				if got := strings.Contains(out.String()+problems.String(), "\x1b["); got != tt.want {
					t.Errorf("%v: colours %v, want %v\n%s%s", args, got, tt.want, &out, &problems)
				}
			}
			var out bytes.Buffer
			Run(t.Context(), Console{Args: []string{"version", "--json"}, Env: env, Out: &out, Err: io.Discard})
			if strings.Contains(out.String(), "\x1b[") {
				t.Errorf("JSON has colours: %s", &out)
			}
		})
	}
}

func TestTableHeaderIsBold(t *testing.T) {
	var out bytes.Buffer
	c := &cli{Console: Console{Out: &out, Env: []string{"FORCE_COLOR=1"}}}
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
