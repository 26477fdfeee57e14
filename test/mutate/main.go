// Command mutate changes the code that must never break in one place at a time and
// checks that a test fails for each change, which is called a mutant:
//
//	go run ./test/mutate [-only internal/auth] [-sample 10]
//
// The mutants of -only simulation are a list of promises that are taken out. The simulation
// alone must notice them.
//
// The tree stays as it is: the tests are built with changed copies of the files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// minKilled is the smallest percentage of killed mutants.
const minKilled = 90

// mutant is a change in one place.
type mutant struct {
	number   int    // of a change in Go code, from 1 on
	unit     string // package or script
	file     string
	line     int
	text     string // of the line
	mutation string
	script   string            // the changed file of scripts
	scripts  []string          // which have the change
	texts    map[string]string // of changed files, for a mutant of the simulation
	killed   bool
}

func (m *mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.mutation) }

// check ends the program after an error.
func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// must returns the value of a call that succeeded.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func main() {
	only := flag.String("only", "", "prefix of the packages and scripts, such as internal/auth, or simulation/WAIT ignored")
	sample := flag.Int("sample", 1, "run every n-th mutant")
	workers := flag.Int("workers", 2, "mutants that run at a time")
	flag.Parse()
	root := must(os.Getwd())
	mutants, overlay := allMutants(root)
	accepted, err := subtractEquivalents(mutants, filepath.Join(root, "test/mutate/equivalent.txt"))
	check(err)
	var selected []*mutant
	considered := 0
	for _, m := range mutants {
		if !accepted[m] && strings.HasPrefix(m.unit+"/"+m.mutation, *only) {
			if considered++; considered%max(1, *sample) == 0 {
				selected = append(selected, m)
			}
		}
	}
	fmt.Printf("%d mutants, %d of them run; %d are accepted as equivalent\n", len(mutants), len(selected), len(accepted))
	r := newRunner(root, must(os.MkdirTemp("", "mutate")), overlay, selected, *workers)
	r.run()
	check(os.RemoveAll(r.dir))
	check(errors.Join(report(os.Stdout, selected, accepted), errors.Join(r.failures...)))
}

// allMutants returns the mutants of all packages and scripts, and the changed files.
func allMutants(root string) ([]*mutant, map[string][]byte) {
	var packages, skipped []string
	for _, u := range units {
		packages = append(packages, "./"+u.path)
		for _, name := range u.skip {
			skipped = append(skipped, filepath.Join(u.path, name))
		}
	}
	mutants, overlay := goMutants(root, packages, skipped)
	for _, script := range must(filepath.Glob(filepath.Join(root, scriptDir, "*.lua"))) {
		mutants = append(mutants, must(luaMutants(root, must(filepath.Rel(root, script))))...)
	}
	mutants = append(mutants, must(simulationMutants(root))...)
	replaceScripts(root, overlay)
	return mutants, overlay
}
