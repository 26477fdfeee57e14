package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"telapi/test/boot"
	"telapi/test/poll"
)

// result is the output of a finished command.
type result struct {
	stdout, stderr string
	exit           int
}

// telapi runs a command until it ends.
func telapi(t *testing.T, env boot.Env, args ...string) result {
	t.Helper()
	path, err := boot.Binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), poll.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = boot.Environ(env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// telapiJSON runs a command with --json, which must succeed and print one object.
func telapiJSON(t *testing.T, env boot.Env, args ...string) map[string]any {
	t.Helper()
	r := telapi(t, env, append(args, "--json")...)
	if r.exit != 0 {
		t.Fatalf("telapi %v: exit %d\n%s", args, r.exit, r.stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("telapi %v: stdout is not one JSON object: %v\n%s", args, err, r.stdout)
	}
	return v
}
