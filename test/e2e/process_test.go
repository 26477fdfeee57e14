package e2e

import (
	"testing"

	"telapi/test/harness"
)

// result is the output of a finished command.
type result struct {
	args           []string
	stdout, stderr string
	exit           int
}

// expect fails the test unless the command ended with an exit code and printed the texts:
// to stderr, and nothing to stdout, if it failed.
func (r result) expect(t *testing.T, exit int, texts ...string) {
	t.Helper()
	output := r.stdout + r.stderr
	if exit != 0 {
		output = r.stderr
	}
	if r.exit != exit || exit != 0 && r.stdout != "" || !containsAll(output, texts...) {
		t.Errorf("telapi %q: exit %d, stdout %q, stderr %q; want exit %d and %q", r.args, r.exit, r.stdout, r.stderr, exit, texts)
	}
}

// telapi runs a command until it ends.
func telapi(t *testing.T, env harness.Env, args ...string) result {
	t.Helper()
	stdout, stderr, exit := harness.Run(t, env, args...)
	return result{args, stdout, stderr, exit}
}
