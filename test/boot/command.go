package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"telapi/test/poll"
)

// Run runs the program until it exits.
func Run(t testing.TB, env Env, args ...string) (stdout, stderr string, exitCode int) {
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), poll.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = Environ(env)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	_ = cmd.Run()
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// RunJSON runs a command with --json, which must succeed and print one object.
func RunJSON(t testing.TB, env Env, args ...string) map[string]any {
	t.Helper()
	stdout, stderr, exitCode := Run(t, env, append(args, "--json")...)
	if exitCode != 0 {
		t.Fatalf("telapi %v: exit code %d\n%s", args, exitCode, stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("telapi %v: stdout is not one JSON object: %v\n%s", args, err, stdout)
	}
	return v
}
