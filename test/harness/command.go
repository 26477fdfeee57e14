package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"telapi/test/testkit"
)

// Run runs the binary under test until it exits.
func Run(t testing.TB, env Env, args ...string) (stdout, stderr string, exitCode int) {
	t.Helper()
	return Program("").Run(t, env, args...)
}

// RunJSON runs the binary under test with --json. It must succeed and print one object.
func RunJSON(t testing.TB, env Env, args ...string) map[string]any {
	t.Helper()
	return Program("").RunJSON(t, env, args...)
}

// Run runs the program until it exits.
func (program Program) Run(t testing.TB, env Env, args ...string) (stdout, stderr string, exitCode int) {
	t.Helper()
	path := program.path(t) // building it takes longer on a busy machine than any command
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = Environ(env)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	_ = cmd.Run()
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// RunJSON runs the program with --json. It must succeed and print one object.
func (program Program) RunJSON(t testing.TB, env Env, args ...string) map[string]any {
	t.Helper()
	stdout, stderr, exitCode := program.Run(t, env, append(args, "--json")...)
	if exitCode != 0 {
		t.Fatalf("telapi %v: exit code %d\n%s", args, exitCode, stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("telapi %v: stdout is not one JSON object: %v\n%s", args, err, stdout)
	}
	return v
}
