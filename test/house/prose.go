package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	maxLines    = 400 // a file of this length no longer tells one story
	minDocWords = 5   // fewer words only repeat the package's name
)

// junkDrawers are names that say nothing, so everything ends up in them.
var junkDrawers = []string{
	"base", "common", "helper", "helpers", "lib", "misc", "shared", "tool", "tools", "types", "util", "utils",
}

// PackagesSayWhatTheyOwn reports packages without a doc comment, with one that
// does not go beyond the name, and packages named like a junk drawer.
func PackagesSayWhatTheyOwn(t *Tree) []string {
	var found []string
	for _, p := range t.Packages {
		name := p.Files[0].AST.Name.Name
		if drawer := strings.TrimSuffix(name, "_test"); slices.Contains(junkDrawers, drawer) || slices.Contains(junkDrawers, path.Base(p.Dir)) {
			found = append(found, fmt.Sprintf("%s: a package called %s invites whatever found no better place: name it after what it owns",
				p.Dir, drawer))
		}
		if words := p.docWords(); words < minDocWords {
			found = append(found, fmt.Sprintf("%s: the doc comment has %d words besides the name: say what the package owns and why it exists",
				p.Dir, words))
		}
	}
	return found
}

// docWords counts the words of the package's doc comment after its customary
// opening. A package that has tests only is documented in one of them.
func (p *Package) docWords() int {
	testsOnly := !slices.ContainsFunc(p.Files, func(f *File) bool { return !f.Test })
	most := 0
	for _, f := range p.Files {
		if f.AST.Doc == nil || f.Test != testsOnly {
			continue
		}
		words := strings.Fields(f.AST.Doc.Text())
		if len(words) >= 2 && (words[0] == "Package" || words[0] == "Command") {
			words = words[2:]
		}
		most = max(most, len(words))
	}
	return most
}

// FilesTellOneStory reports files that are too long to do so. Tests may be long
// tables, and nobody reads generated files.
func FilesTellOneStory(t *Tree) []string {
	return eachFile(t, func(f *File) []string {
		lines := bytes.Count(f.Source, []byte("\n"))
		if f.Test || lines <= maxLines || ast.IsGenerated(f.AST) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %d lines: split it by the stories it tells, %d lines at the most", f.Path, lines, maxLines)}
	})
}

// NothingRunsBeforeMain reports init functions.
func NothingRunsBeforeMain(t *Tree) []string {
	return eachFile(t, func(f *File) []string {
		var found []string
		for _, declared := range f.AST.Decls {
			if fn, ok := declared.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				found = append(found, f.at(fn.Pos())+": init runs before anybody can inject or observe anything: call a constructor where the thing is needed")
			}
		}
		return found
	})
}

// unfinished are the marks by which people postpone work.
var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

// NothingIsPostponed reports marks of unfinished work: in the comments of Go
// files, and anywhere in other sources.
func NothingIsPostponed(t *Tree) []string {
	const why = "finish it, or open an issue and leave the mark out"
	found := eachFile(t, func(f *File) []string {
		var found []string
		for _, group := range f.AST.Comments {
			for _, comment := range group.List {
				if mark := unfinished.FindString(comment.Text); mark != "" {
					found = append(found, fmt.Sprintf("%s: %s: %s", f.at(comment.Pos()), mark, why))
				}
			}
		}
		return found
	})
	for _, text := range t.Texts {
		if at := unfinished.FindIndex(text.Source); at != nil {
			line := 1 + bytes.Count(text.Source[:at[0]], []byte("\n"))
			found = append(found, fmt.Sprintf("%s:%d: %s: %s", text.Path, line, text.Source[at[0]:at[1]], why))
		}
	}
	return found
}

// FilesAreFormatted reports Go files that gofmt would change.
func FilesAreFormatted(t *Tree) []string {
	return eachFile(t, func(f *File) []string {
		formatted, err := format.Source(f.Source)
		if err == nil && bytes.Equal(formatted, f.Source) {
			return nil
		}
		return []string{f.Path + ": not formatted: run `make fmt`"}
	})
}

func eachFile(t *Tree, check func(*File) []string) []string {
	var found []string
	for _, p := range t.Packages {
		for _, f := range p.Files {
			found = append(found, check(f)...)
		}
	}
	return found
}
