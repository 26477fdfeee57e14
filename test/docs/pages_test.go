package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestTestsNamedInDocsExist(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".git")):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(Test[A-Z]\\w+)`").FindAllSubmatch(text, -1) {
			if named++; !strings.Contains(tests.String(), "\nfunc "+string(m[1])+"(") {
				t.Errorf("%s names %s, which does not exist", filepath.Base(page), m[1])
			}
		}
	}
	if named == 0 {
		t.Error("found no test names in docs/*.md")
	}
}

func TestArchitecturePageListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, packages, _ := strings.Cut(string(text), "## Packages")
	packages, _, _ = strings.Cut(packages, "\n## ")
	words := strings.FieldsFunc(packages, func(r rune) bool { return strings.ContainsRune(" \n/`", r) })
	for _, folder := range []string{"", "callruntime", "internal", "test"} {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			generated := slices.Contains([]string{"bin", "data", "dist", "node_modules", "test-artifacts"}, e.Name()) || strings.HasPrefix(e.Name(), ".")
			if e.IsDir() && !generated && !slices.Contains(words, e.Name()) {
				t.Errorf("docs/architecture.md does not describe %s", filepath.Join(folder, e.Name()))
			}
		}
	}
}
