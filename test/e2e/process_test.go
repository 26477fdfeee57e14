package e2e

import (
	"testing"

	"telapi/test/harness"
)

// result is the output of a finished command.
type result struct {
	stdout, stderr string
	exit           int
}

// telapi runs a command until it ends.
func telapi(t *testing.T, env harness.Env, args ...string) result {
	t.Helper()
	stdout, stderr, exit := harness.Run(t, env, args...)
	return result{stdout, stderr, exit}
}
