// Package house holds the repository to its own rules: which package may import
// which, who may end the process or read the environment, and what every source
// file owes its readers. The rules work on any file tree, so each of them is
// itself tested on small trees that break it.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// module is the path that imports of this repository's own packages start with.
const module = "telapi"

// Tree is a module's source: its Go packages, and other text that people write.
type Tree struct {
	Packages []*Package // in the order of their first files
	Texts    []Text     // scripts, queries and other sources that are not Go
}

// Package is one folder of Go files.
type Package struct {
	Dir   string // from the root of the module: "internal/auth"
	Files []*File
}

// File is one parsed Go file.
type File struct {
	Path   string
	Test   bool // _test.go
	Source []byte
	AST    *ast.File

	positions *token.FileSet
}

// Text is a source file in another language.
type Text struct {
	Path   string
	Source []byte
}

// textual lists the endings of other sources that rules look into.
var textual = map[string]bool{".lua": true, ".sql": true, ".sh": true, ".ts": true}

// Load reads the module that lies at the root of fsys. Folders that Go ignores,
// installed packages and build results are left out.
func Load(fsys fs.FS) (*Tree, error) {
	tree := new(Tree)
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && ignored(name):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		ending := path.Ext(name)
		if ending != ".go" && !textual[ending] {
			return nil
		}
		source, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if ending == ".go" {
			return tree.addGo(name, source)
		}
		tree.Texts = append(tree.Texts, Text{Path: name, Source: source})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the source tree: %w", err)
	}
	return tree, nil
}

func ignored(dir string) bool {
	base := path.Base(dir)
	switch {
	case dir == ".":
		return false
	case dir == "bin", dir == "data", base == "dist", base == "node_modules", base == "testdata", base == "vendor":
		return true
	default:
		return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
	}
}

func (t *Tree) addGo(name string, source []byte) error {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p := t.packageIn(path.Dir(name))
	p.Files = append(p.Files, &File{
		Path: name, Test: strings.HasSuffix(name, "_test.go"), Source: source, AST: parsed, positions: positions,
	})
	return nil
}

// packageIn returns the package of a folder. Folders are walked with their
// subfolders in between, so it need not be the latest one.
func (t *Tree) packageIn(dir string) *Package {
	for _, p := range t.Packages {
		if p.Dir == dir {
			return p
		}
	}
	p := &Package{Dir: dir}
	t.Packages = append(t.Packages, p)
	return p
}

// at names a place in the file as editors understand it.
func (f *File) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.Path, f.positions.Position(pos).Line)
}

// importPath returns what an import spec names.
func importPath(spec *ast.ImportSpec) string {
	name, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return name
}

// within tells whether name is the path or folder root, or lies below it.
func within(name, root string) bool {
	return name == root || strings.HasPrefix(name, root+"/")
}
