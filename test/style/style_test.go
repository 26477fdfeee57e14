// Package style checks the repository's texts and configuration where no
// linter can: plain words, complete import layers, no postponed work.
package style

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// sources returns the repository's text files by path from its root. Installed
// packages, build results and recorded data are left out.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if regexp.MustCompile(`(^|/)(testdata|dist|node_modules)/|^web/docs/`).MatchString(name) {
			continue
		}
		text, err := os.ReadFile(path.Join(root, name))
		if err == nil && !bytes.Contains(text, []byte{0}) { // skips deleted files, links to directories and binary files
			files[name] = text
		}
	}
	if len(files) < 100 {
		t.Fatalf("found %d files: not the whole repository", len(files))
	}
	return files
}

// golangci-lint checks the layers, but not that every package is in one.
func TestEveryPackageBelongsToALayer(t *testing.T) {
	files := sources(t)
	config := string(files[".golangci.yml"])
	inLayer := map[string]bool{}
	for _, glob := range regexp.MustCompile(`"\*\*/((?:internal|callruntime)[^"]*)/\*\.go"`).FindAllStringSubmatch(config, -1) {
		before, names, _ := strings.Cut(glob[1], "{")
		names, after, _ := strings.Cut(names, "}")
		for name := range strings.SplitSeq(names, ",") {
			inLayer[before+name+after] = true
		}
	}
	for name := range files {
		dir := path.Dir(name)
		inScope := strings.HasPrefix(dir, "internal") || strings.HasPrefix(dir, "callruntime")
		if inScope && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !inLayer[dir] {
			t.Errorf("%s is in no layer: add it to a depguard rule in .golangci.yml", dir)
			inLayer[dir] = true // report it once
		}
	}
}

// godox, a linter of golangci-lint, checks Go files.
func TestNoWorkIsPostponed(t *testing.T) {
	mark := regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	for name, text := range sources(t) {
		switch path.Ext(name) {
		case ".lua", ".sql", ".sh", ".ts":
			if found := mark.Find(text); found != nil {
				t.Errorf("%s: %s: finish it, or open an issue and remove the mark", name, found)
			}
		}
	}
}

// nolintlint accepts the names of linters that are off.
func TestExceptionsNameLintersThatAreOn(t *testing.T) {
	files := sources(t)
	config := string(files[".golangci.yml"])
	_, enabled, _ := strings.Cut(config, "enable:")
	enabled, _, _ = strings.Cut(enabled, "settings:")
	for name, text := range files {
		if path.Ext(name) != ".go" || strings.HasPrefix(name, "test/style/") {
			continue
		}
		for _, exception := range regexp.MustCompile(`//nolint:([\w,]+)`).FindAllStringSubmatch(string(text), -1) {
			for linter := range strings.SplitSeq(exception[1], ",") {
				if !strings.Contains(enabled, "- "+linter) {
					t.Errorf("%s: //nolint:%s: this linter is not enabled in .golangci.yml; remove the exception", name, linter)
				}
			}
		}
	}
}
