package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// goPackage is what go list prints about a package.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// goMutants returns the mutants of Go packages, and the changed files by path: each
// contains all its mutants, of which the variable MUTANT switches one on. So a test
// program is built once for all of them. Files in skipped are not changed.
func goMutants(root string, packages, skipped []string) (mutants []*mutant, overlay map[string][]byte) {
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, packages...)...)
	list.Dir, list.Stderr = root, os.Stderr
	exports, targets := map[string]string{}, []goPackage{}
	for decoder := json.NewDecoder(bytes.NewReader(must(list.Output()))); decoder.More(); {
		var p goPackage
		check(decoder.Decode(&p))
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			targets = append(targets, p)
		}
	}
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	overlay = map[string][]byte{}
	for _, p := range targets {
		var files []*ast.File
		for _, name := range p.GoFiles {
			files = append(files, must(parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)))
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
		must((&types.Config{Importer: imports}).Check(p.ImportPath, set, files, info))
		for i, file := range files {
			path := filepath.Join(p.Dir, p.GoFiles[i])
			relative := must(filepath.Rel(root, path))
			if slices.Contains(skipped, relative) {
				continue
			}
			m := &goMutator{info: info, file: set.File(file.Pos()), text: must(os.ReadFile(path)), next: len(mutants) + 1}
			ast.Inspect(file, m.visit)
			for _, found := range m.mutants {
				found.unit, found.file = filepath.Dir(relative), relative
			}
			mutants = append(mutants, m.mutants...)
			overlay[path] = m.instrumented()
		}
		overlay[filepath.Join(p.Dir, "mutant_switch.go")] = []byte(strings.Replace(switchFile, "PACKAGE", files[0].Name.Name, 1))
	}
	return mutants, overlay
}

// switchFile is added to every changed package. With MUTANT_TRACE it writes the numbers
// of the mutants that are reached to a file.
const switchFile = `package PACKAGE

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutantActive, _ = strconv.Atoi(os.Getenv("MUTANT"))
	mutantTrace     = os.Getenv("MUTANT_TRACE")
	mutantsReached  [100000]atomic.Bool
)

func mutantOn(number int) bool {
	if mutantTrace != "" {
		mutantReached(number)
	}
	return mutantActive == number
}

func mutantReached(number int) {
	if mutantsReached[number].Swap(true) {
		return
	}
	file, err := os.OpenFile(mutantTrace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(file, number)
	file.Close()
}

type mutantNumber interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func mutantAdd[T mutantNumber](number int, a, b T) T {
	if mutantOn(number) {
		return a - b
	}
	return a + b
}

func mutantSub[T mutantNumber](number int, a, b T) T {
	if mutantOn(number) {
		return a + b
	}
	return a - b
}

func mutantMul[T mutantNumber](number int, a, b T) T {
	if mutantOn(number) {
		return a / b
	}
	return a * b
}

func mutantDiv[T mutantNumber](number int, a, b T) T {
	if mutantOn(number) {
		return a * b
	}
	return a / b
}

func mutantCase[T ~string](number int, value T) T {
	if mutantOn(number) {
		return "mutant: no value is equal to this one"
	}
	return value
}
`
