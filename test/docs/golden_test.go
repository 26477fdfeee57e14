// Package docs tests the documentation. Reference pages are generated from the
// code, and commands on pages are run.
package docs

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"telapi/test/testkit"
)

var update = flag.Bool("update", false, "rewrite the generated pages in docs")

// root is the repository's root directory.
const root = "../.."

// checkGenerated compares a page with its generated text, or rewrites it with -update.
func checkGenerated(t *testing.T, page, want string) {
	t.Helper()
	file := filepath.Join(root, page)
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	testkit.Must(t, err)
	if string(got) != want {
		t.Errorf("%s is out of date: run `make generate`", page)
	}
}
