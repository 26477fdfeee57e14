// Package docs holds the documentation to the code: pages that list what the
// code knows are generated from it, and commands that a page shows are run.
package docs

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated pages of docs")

// root is the repository, seen from this folder.
const root = "../.."

// generated compares a page with what the code says, or rewrites it.
func generated(t *testing.T, page, want string) {
	t.Helper()
	file := filepath.Join(root, page)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the code says: run `make generate`", page)
	}
}
