// Command mutate changes the code that must never break in one place at a time and
// checks that a test fails for each change, which is called a mutant:
//
//	go run ./test/mutate [-only internal/auth] [-sample 10] [-v]
//
// The tree stays as it is: the tests are built with changed copies of the files.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// minKilled is the smallest share of killed mutants.
const minKilled = 0.9

// mutant is a change in one place.
type mutant struct {
	number   int    // of a change in Go code, from 1 on
	unit     string // package or script
	file     string
	line     int
	text     string // of the line
	mutation string
	script   string // the changed script
	killed   bool
	killer   string // the test that failed
}

func (m *mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.mutation) }

// options are the flags of the command.
type options struct {
	only, without        []string
	sample, workers      int
	quick, list, verbose bool
}

func main() {
	var o options
	only := flag.String("only", "", "comma-separated prefixes of packages and scripts, such as internal/auth")
	without := flag.String("without", "", "comma-separated packages whose tests do not run, such as test/e2e")
	flag.IntVar(&o.sample, "sample", 1, "run every n-th mutant")
	flag.IntVar(&o.workers, "workers", 2, "mutants that run at a time")
	flag.BoolVar(&o.quick, "quick", false, "leave out the slower half of the tests; more mutants survive")
	flag.BoolVar(&o.list, "list", false, "print the mutants, and run nothing")
	flag.BoolVar(&o.verbose, "v", false, "print every mutant and the test that kills it")
	flag.Parse()
	o.only, o.without, o.sample = strings.Split(*only, ","), strings.Split(*without, ","), max(1, o.sample)
	if err := run(o); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(o options) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	mutants, overlay, err := allMutants(root)
	if err != nil {
		return err
	}
	accepted, err := subtractEquivalents(mutants, filepath.Join(root, "test/mutate/equivalent.txt"))
	if err != nil {
		return err
	}
	var selected []*mutant
	for _, m := range mutants {
		if !accepted[m] && slices.ContainsFunc(o.only, func(prefix string) bool { return strings.HasPrefix(m.unit, prefix) }) {
			selected = append(selected, m)
		}
	}
	var sampled []*mutant
	for i := 0; i < len(selected); i += o.sample {
		sampled = append(sampled, selected[i])
	}
	fmt.Printf("%d mutants, %d of them run; %d are accepted as equivalent\n", len(mutants), len(sampled), len(accepted))
	if o.list {
		for _, m := range sampled {
			fmt.Println(m)
		}
		return nil
	}
	r, err := newRunner(root, dir, overlay, sampled, o)
	if err != nil {
		return err
	}
	if err := r.run(); err != nil {
		return err
	}
	return report(os.Stdout, sampled, accepted)
}

// allMutants returns the mutants of all packages and scripts, and the changed files.
func allMutants(root string) ([]*mutant, map[string][]byte, error) {
	var packages []string
	for _, u := range units {
		packages = append(packages, "./"+u.path)
	}
	mutants, overlay, err := goMutants(root, packages)
	if err != nil {
		return nil, nil, err
	}
	scripts, err := filepath.Glob(filepath.Join(root, scriptDir, "*.lua"))
	if err != nil {
		return nil, nil, err
	}
	for _, script := range scripts {
		found, err := luaMutants(root, filepath.Join(scriptDir, filepath.Base(script)))
		if err != nil {
			return nil, nil, err
		}
		mutants = append(mutants, found...)
	}
	if err := replaceScripts(root, overlay); err != nil {
		return nil, nil, err
	}
	return mutants, overlay, nil
}
