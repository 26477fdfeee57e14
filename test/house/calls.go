package house

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
)

// reserved is a set of functions or types of a standard package that only some
// packages may use.
type reserved struct {
	pkg     string
	names   []string
	allowed func(dir string) bool
	why     string
}

// inFolders allows the given folders, and tests, which are free.
func inFolders(folders ...string) func(string) bool {
	return func(dir string) bool {
		return within(dir, testFolder) || slices.ContainsFunc(folders, func(f string) bool { return within(dir, f) })
	}
}

// outsideFloors allows every package that stands on none of the given floors.
func outsideFloors(names ...string) func(string) bool {
	return func(dir string) bool {
		p, ok := place(dir)
		return !ok || !slices.Contains(names, p.floor.Name)
	}
}

const (
	whyExit  = "only cmd ends the process, so that everything else can be tested and shut down in order: return an error"
	whyEnv   = "only internal/config reads the environment, so that `telapi config` shows all of it: add a field there"
	whyServe = "the domain answers calls, not requests: decode in httpapi, call the domain, encode in httpapi"
)

var reservations = []reserved{
	{"os", []string{"Exit"}, inFolders("cmd"), whyExit},
	{"syscall", []string{"Exit"}, inFolders("cmd"), whyExit},
	{"log", []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}, inFolders("cmd"), whyExit},
	{"os", []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}, inFolders("cmd", "internal/cli", "internal/config"), whyEnv},
	{"syscall", []string{"Getenv", "Environ"}, inFolders("cmd", "internal/cli", "internal/config"), whyEnv},
	{
		"net/http", []string{
			"Error", "Handle", "HandleFunc", "Handler", "HandlerFunc", "ListenAndServe", "ListenAndServeTLS", "NewServeMux",
			"Redirect", "ResponseController", "ResponseWriter", "Serve", "ServeContent", "ServeMux", "ServeTLS", "Server",
		}, func(dir string) bool { return dir == "internal/httpserve" || outsideFloors("domain", "leaves")(dir) }, whyServe,
	},
}

// CallsStayInTheirPlace reports code that ends the process, reads the
// environment or serves HTTP outside the packages that own this.
func CallsStayInTheirPlace(t *Tree) []string {
	var found []string
	for _, p := range t.Packages {
		for _, file := range p.Files {
			if file.Test {
				continue
			}
			for _, r := range reservations {
				if !r.allowed(p.Dir) {
					found = append(found, file.uses(r)...)
				}
			}
		}
	}
	return found
}

// uses reports every mention of a reserved name, under whatever name the file
// imports its package. A dot import hides the mentions and counts as one.
func (f *File) uses(r reserved) []string {
	var found []string
	for _, spec := range f.AST.Imports {
		if importPath(spec) != r.pkg {
			continue
		}
		local := path.Base(r.pkg)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			found = append(found, fmt.Sprintf("%s: dot import of %s: %s", f.at(spec.Pos()), strconv.Quote(r.pkg), r.why))
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := selector.X.(*ast.Ident); ok && x.Name == local && slices.Contains(r.names, selector.Sel.Name) {
				found = append(found, fmt.Sprintf("%s: %s.%s: %s", f.at(selector.Pos()), r.pkg, selector.Sel.Name, r.why))
			}
			return true
		})
	}
	return found
}
