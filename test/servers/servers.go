// Package servers starts real servers for tests: each on a free port with its
// own data folder, stopped when the test ends. It relies on nothing that
// somebody left running.
package servers

import (
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"testing"
)

// Strict tells whether a missing server fails a test instead of skipping it.
func Strict() bool { return os.Getenv("CI") == "true" || os.Getenv("STRICT_TESTS") == "true" }

// need returns the path of a program. Without it the test is skipped with the
// package to install, or fails where servers are demanded.
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
	const hint = "%s is not installed: run scripts/install-servers.sh (Debian package %s)"
	if Strict() {
		t.Fatalf(hint, program, debianPackage)
	}
	t.Skipf(hint, program, debianPackage)
	return ""
}
