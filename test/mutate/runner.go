package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// unit is a package whose mutants must be killed by its tests or by those of other
// packages, which run for the survivors.
type unit struct {
	path string
	also []string
}

var units = []unit{
	{"internal/auth", []string{"test/e2e"}},
	{"internal/bot", []string{"internal/callback", "test/e2e"}},
	{"internal/callback", []string{"internal/redisstore", "test/e2e"}},
	{"internal/channel", []string{"internal/redisstore", "internal/httpapi", "test/e2e"}},
	{"internal/command", []string{"internal/bot", "internal/callback", "test/e2e"}},
	{"internal/ratelimit", []string{"internal/redisstore", "internal/httpapi", "test/e2e"}},
	{"internal/session", []string{"internal/sqlstore", "test/e2e"}},
}

const scriptDir = "internal/lua"

// scriptTests are the packages whose tests run the scripts.
var scriptTests = []string{"internal/redisstore", "internal/calls"}

// skipped are tests that say nothing about a mutant, because they compare the code with
// its text.
var skipped = []string{}

// replaceScripts adds a file to the overlay that reads the scripts from the directory in
// MUTANT_SCRIPTS.
func replaceScripts(root string, overlay map[string][]byte) error {
	path := filepath.Join(root, scriptDir, "lua.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const embedded = "//go:embed *.lua\nvar files embed.FS\n"
	changed := strings.Replace(string(text), embedded, scriptFiles, 1)
	changed = strings.Replace(changed, "\t\"embed\"\n", "\t\"embed\"\n\t\"os\"\n\t\"path/filepath\"\n", 1)
	if changed == string(text) || !strings.Contains(changed, scriptFiles) {
		return fmt.Errorf("%s does not embed the scripts with %q", path, embedded)
	}
	overlay[path] = []byte(changed)
	return nil
}

const scriptFiles = `//go:embed *.lua
var embedded embed.FS

var files mutantFiles

type mutantFiles struct{}

func (mutantFiles) ReadFile(name string) ([]byte, error) {
	if text, err := os.ReadFile(filepath.Join(os.Getenv("MUTANT_SCRIPTS"), name)); err == nil {
		return text, nil
	}
	return embedded.ReadFile(name)
}
`

type runner struct {
	*programs
	options
	mutants []*mutant
	killers sync.Map // unit to the last tests that killed a mutant of it
}

func newRunner(root, dir string, overlay map[string][]byte, mutants []*mutant, o options) (*runner, error) {
	p, err := newPrograms(root, dir, overlay, o.workers)
	return &runner{programs: p, options: o, mutants: mutants}, err
}

// run runs the mutants unit by unit.
func (r *runner) run() error {
	for _, u := range units {
		isOfUnit := func(m *mutant) bool { return m.script == "" && m.unit == u.path }
		for _, path := range append([]string{u.path}, u.also...) {
			if err := r.runOn(path, isOfUnit); err != nil {
				return err
			}
		}
	}
	for _, path := range scriptTests {
		if err := r.runOn(path, func(m *mutant) bool { return m.script != "" }); err != nil {
			return err
		}
	}
	return nil
}

// runOn runs the selected mutants that survived so far on the tests of a package.
func (r *runner) runOn(path string, selected func(*mutant) bool) error {
	var mutants []*mutant
	for _, m := range r.mutants {
		if !m.killed && selected(m) {
			mutants = append(mutants, m)
		}
	}
	if len(mutants) == 0 || slices.Contains(r.without, path) {
		return nil
	}
	built, err := r.get(path)
	if err != nil {
		return err
	}
	start := time.Now()
	var group errgroup.Group
	group.SetLimit(r.options.workers)
	for _, m := range mutants {
		group.Go(func() error { return r.try(m, built) })
	}
	err = group.Wait()
	killed := 0
	for _, m := range mutants {
		if m.killed {
			killed++
		}
	}
	fmt.Printf("%s: %d of %d mutants killed by %s, %s\n", mutants[0].unit, killed, len(mutants), path, time.Since(start).Round(time.Second))
	return err
}

// try runs the tests of a program with a mutant: first those that killed others of the
// same unit, then the quick ones.
func (r *runner) try(m *mutant, built *program) error {
	env := fmt.Sprintf("MUTANT=%d", m.number)
	if m.script != "" {
		dir, err := os.MkdirTemp(r.dir, "script")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(m.file)), []byte(m.script), 0o600); err != nil {
			return err
		}
		env = "MUTANT_SCRIPTS=" + dir
	}
	var tests []*test
	for _, t := range built.tests {
		if m.script != "" || t.reached[m.number] {
			tests = append(tests, t)
		}
	}
	start := time.Now()
	key := m.unit + " " + built.path
	for _, b := range r.batches(key, tests) {
		if killer := r.fails(built, b.tests, b.subtests, env); killer != "" {
			m.killed, m.killer = true, killer
			r.killers.Store(key, killer)
			break
		}
	}
	if r.verbose {
		result := "survived " + built.path
		if m.killed {
			result = "killed by " + m.killer
		}
		fmt.Printf("%s: %s, %d tests, %s\n", m, result, len(tests), time.Since(start).Round(10*time.Millisecond))
	}
	return nil
}

// batch is a group of tests that run together.
type batch struct {
	tests    []*test
	subtests string // a pattern, if not all of them run
}

// batches returns tests, which are sorted by duration, in the order in which they run:
// the test that killed the last mutant, those on embedded stores, the quicker half, and the others.
func (r *runner) batches(key string, tests []*test) []batch {
	var batches []batch
	if killer, ok := r.killers.Load(key); ok {
		if i := slices.IndexFunc(tests, func(t *test) bool { return t.name == killer }); i >= 0 && tests[i].took < time.Second {
			batches = append(batches, batch{tests[i : i+1], ""})
		}
	}
	var embedded []*test
	for _, t := range tests {
		if t.embedded > 0 {
			embedded = append(embedded, t)
		}
	}
	if len(embedded) > 0 {
		batches = append(batches, batch{embedded, "/^embedded$"})
	}
	half := (len(tests) + 1) / 2
	if half > 0 {
		batches = append(batches, batch{tests[:half], ""})
	}
	if half < len(tests) && !r.quick {
		batches = append(batches, batch{tests[half:], ""})
	}
	return batches
}
