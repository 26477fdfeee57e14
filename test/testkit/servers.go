// Package testkit holds what tests of every layer need: servers such as Redis, PostgreSQL,
// nginx and HAProxy, certificates, free ports, polling, and a buffer for logs. It imports
// no package of the service, so that all of them can use it. Each server uses a free port
// and its own data directory, and stops when the test ends. Servers that already run on
// the machine are not used.
package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"testing"
)

// Strict reports whether a missing server fails a test instead of skipping it.
func Strict() bool { return os.Getenv("CI") == "true" || os.Getenv("STRICT_TESTS") == "true" }

// Missing skips a test for which the machine lacks something, or fails it if Strict
// returns true.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if Strict() {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// need returns the path of a program. A message about a missing one names the package to
// install.
func need(t testing.TB, program, debianPackage string, extraDirs ...string) string {
	t.Helper()
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, pattern := range extraDirs {
		found, _ := filepath.Glob(filepath.Join(pattern, program))
		sort.Strings(found)
		if len(found) > 0 {
			return found[len(found)-1]
		}
	}
	Missing(t, "%s is not installed: run scripts/install-servers.sh check (Debian package %s)", program, debianPackage)
	return ""
}
