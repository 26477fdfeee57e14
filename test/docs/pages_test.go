package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
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
	testkit.Must(t, err)
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	testkit.Must(t, err)
	named := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testkit.Must(t, err)
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

// A page that grows beyond this has two readers: split it.
func TestPagesAreShort(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	testkit.Must(t, err)
	maximum := map[string]int{filepath.Join(root, "README.md"): 700}
	for _, page := range pages {
		maximum[page] = 2000
	}
	for page, most := range maximum {
		text, err := os.ReadFile(page)
		testkit.Must(t, err)
		if words := len(strings.Fields(string(text))); words > most {
			t.Errorf("%s has %d words, want at most %d", page, words, most)
		}
	}
}

func TestArchitecturePageListsEveryPackage(t *testing.T) {
	_, packages, _ := strings.Cut(readFile(t, "docs/architecture.md"), "## Packages")
	packages, _, _ = strings.Cut(packages, "\n## ")
	_, picture, _ := strings.Cut(packages, "```mermaid")
	picture, _, _ = strings.Cut(picture, "```")
	for folder, text := range map[string]string{"": packages, "callruntime": picture, "internal": picture, "test": packages} {
		words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n/`\"[]<>,", r) })
		entries, err := os.ReadDir(filepath.Join(root, folder))
		testkit.Must(t, err)
		for _, e := range entries {
			generated := slices.Contains([]string{"bin", "data", "dist", "node_modules", "test-artifacts"}, e.Name()) || strings.HasPrefix(e.Name(), ".")
			if e.IsDir() && !generated && !slices.Contains(words, e.Name()) {
				t.Errorf("docs/architecture.md does not describe %s", filepath.Join(folder, e.Name()))
			}
		}
	}
	for _, node := range regexp.MustCompile(`(?m)^    (\w+)\["`).FindAllStringSubmatch(picture, -1) {
		if _, err := os.Stat(filepath.Join(root, "internal", node[1])); err != nil && node[1] != "telapi" && node[1] != "wire" {
			t.Errorf("the picture of docs/architecture.md has %s, which is not a package", node[1])
		}
	}
}

// The walks of docs/architecture.md have at most ten steps. Each names a file of internal
// and, in Go, a function in it.
func TestArchitectureWalksNameExistingFunctions(t *testing.T) {
	text := readFile(t, "docs/architecture.md")
	for _, walk := range []string{"A callback", "A frame", "A message"} {
		_, section, _ := strings.Cut(text, "\n### "+walk+"\n")
		section, _, _ = strings.Cut(section, "\n##")
		steps := regexp.MustCompile(`(?m)^\d+\. `).FindAllString(section, -1)
		named := regexp.MustCompile("`([\\w/]+\\.(?:go|lua))(?:: ([\\w.]+))?`").FindAllStringSubmatch(section, -1)
		if len(steps) == 0 || len(steps) > 10 || len(named) < len(steps) {
			t.Errorf("%s: %d steps, %d places in the code; want 1 to 10 steps with a place each", walk, len(steps), len(named))
		}
		for _, place := range named {
			file, function := filepath.Join(root, "internal", place[1]), place[2]
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s does not exist", walk, place[1])
			} else if strings.HasSuffix(file, ".go") && !slices.Contains(functions(t, file), function) {
				t.Errorf("%s: %s does not declare %q", walk, place[1], function)
			}
		}
	}
}

// functions lists the functions of a file; a method has its type as prefix.
func functions(t *testing.T, file string) (names []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	testkit.Must(t, err)
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			name := f.Name.Name
			if f.Recv != nil {
				name = strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + name
			}
			names = append(names, name)
		}
	}
	return names
}

// golangci-lint checks the layers, but not that every package is in one.
func TestEveryPackageBelongsToALayer(t *testing.T) {
	inLayer := map[string]bool{}
	for _, glob := range regexp.MustCompile(`"\*\*/((?:internal|callruntime)[^"]*)/\*\.go"`).FindAllStringSubmatch(readFile(t, ".golangci.yml"), -1) {
		before, names, _ := strings.Cut(glob[1], "{")
		names, after, _ := strings.Cut(names, "}")
		for name := range strings.SplitSeq(names, ",") {
			inLayer[before+name+after] = true
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "./internal/...", "./callruntime/...")
	list.Dir = root
	dirs, err := list.Output()
	testkit.Must(t, err)
	base, err := filepath.Abs(root)
	testkit.Must(t, err)
	for dir := range strings.FieldsSeq(string(dirs)) {
		if name, _ := filepath.Rel(base, dir); !inLayer[name] {
			t.Errorf("%s is in no layer: add it to a depguard rule in .golangci.yml", name)
		}
	}
}
