package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// program is the built test program of a package.
type program struct {
	path  string // of the package, from the root
	file  string
	tests []*test
}

// test is a test without mutants.
type test struct {
	name     string
	took     time.Duration
	embedded time.Duration   // of a subtest with this name; 0 if it has none
	reached  map[string]bool // numbers of mutants of Go code, and names of scripts
	err      error           // without a mutant
}

// programs builds and measures test programs when they are first needed.
type programs struct {
	root, dir, overlay string
	workers            int
	built              map[string]*program
	failures           []error // of tests that fail without a mutant
}

func newPrograms(root, dir string, files map[string][]byte, workers int) *programs {
	replace := map[string]string{}
	for path, content := range files {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		check(os.WriteFile(replace[path], content, 0o600))
	}
	overlay := filepath.Join(dir, "overlay.json")
	check(os.WriteFile(overlay, must(json.Marshal(map[string]any{"Replace": replace})), 0o600))
	return &programs{root: root, dir: dir, overlay: overlay, workers: workers, built: map[string]*program{}}
}

// get returns the test program of a package.
func (p *programs) get(path string) *program {
	if p.built[path] == nil {
		built := &program{path: path, file: filepath.Join(p.dir, strings.ReplaceAll(path, "/", "_")+".test")}
		build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay="+p.overlay, "-o", built.file, "./"+path)
		build.Dir, build.Stdout, build.Stderr = p.root, os.Stdout, os.Stderr
		check(build.Run())
		p.measure(built)
		p.built[path] = built
	}
	return p.built[path]
}

// measure runs every test alone, without a mutant. Tests that fail are left out.
func (p *programs) measure(built *program) {
	start := time.Now()
	var group errgroup.Group
	group.SetLimit(p.workers)
	for i, name := range strings.Fields(string(must(p.command(context.Background(), built, "-test.list=^(Test|Fuzz)").Output()))) {
		t := &test{name: name, reached: map[string]bool{}}
		built.tests = append(built.tests, t)
		group.Go(func() error {
			t.err = p.measureTest(built, t, filepath.Join(p.dir, "trace"+strconv.Itoa(i)))
			return nil
		})
	}
	check(group.Wait())
	for _, t := range built.tests {
		if t.err != nil {
			p.failures = append(p.failures, fmt.Errorf("%s of %s fails without a mutant, so it was left out: %w", t.name, built.path, t.err))
		}
	}
	built.tests = slices.DeleteFunc(built.tests, func(t *test) bool { return t.err != nil })
	slices.SortFunc(built.tests, func(a, b *test) int { return int(a.took - b.took) })
	fmt.Printf("%s: %d tests without mutants, %s\n", built.path, len(built.tests), time.Since(start).Round(time.Second))
}

func (p *programs) measureTest(built *program, t *test, trace string) error {
	start := time.Now()
	command := p.command(context.Background(), built, "-test.run=^"+t.name+"$", "-test.v", "-test.timeout=10m")
	command.Env = append(command.Env, "MUTANT_TRACE="+trace)
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	t.took = time.Since(start)
	if m := embeddedTest.FindSubmatch(output); m != nil {
		t.embedded = max(1, time.Duration(must(strconv.ParseFloat(string(m[1]), 64))*float64(time.Second)))
	}
	reached, err := os.ReadFile(trace)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for name := range strings.FieldsSeq(string(reached)) {
		t.reached[name] = true
	}
	return nil
}

// mayRun reports whether a test may run one of the scripts. Not every call is traced.
func (p *program) mayRun(t *test, scripts []string) bool {
	return slices.ContainsFunc(scripts, func(name string) bool {
		isTraced := slices.ContainsFunc(p.tests, func(t *test) bool { return t.reached[name] })
		return t.reached[name] || !isTraced
	})
}

func (p *programs) command(ctx context.Context, built *program, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, built.file, args...)
	command.Dir, command.Env = filepath.Join(p.root, built.path), append(os.Environ(), "TMPDIR="+p.dir)
	return command
}

// maxSilence is how long a test program may print nothing, in addition to twice the duration of
// its longest test: a mutant that hangs is killed then.
const maxSilence = 15 * time.Second

// fails runs tests with a mutant, which env switches on, and reports whether one fails
// or hangs, and the name of one that failed. subtests can limit the tests to some of their
// subtests on embedded stores.
func (p *programs) fails(built *program, tests []*test, subtests, env string) (bool, string) {
	var names []string
	limit, longest := time.Minute, time.Duration(0)
	for _, t := range tests {
		names = append(names, t.name)
		took := t.took
		if subtests != "" {
			took = t.embedded
		}
		limit, longest = limit+2*took, max(longest, took) // they run at the same time
	}
	silence := maxSilence + 2*longest
	ctx, cancel := context.WithTimeout(context.Background(), limit+silence)
	defer cancel()
	command := p.command(ctx, built, "-test.run=^("+strings.Join(names, "|")+")$"+subtests, "-test.failfast", "-test.parallel=4", "-test.v")
	command.Env = append(command.Env, env)
	output := silenceWriter{silence: silence, hangs: time.AfterFunc(silence, cancel)}
	defer output.hangs.Stop()
	command.Stdout = &output
	failed := command.Run() != nil
	name := ""
	for _, m := range failedTest.FindAllSubmatch(output.Bytes(), -1) {
		if strings.Count(string(m[1]), "/") > strings.Count(name, "/") {
			name = string(m[1])
		}
	}
	return failed, name
}

var (
	embeddedTest = regexp.MustCompile(`--- PASS: \w+/embedded \(([\d.]+)s\)`)
	failedTest   = regexp.MustCompile(`--- FAIL: (\S+) `)
)

// silenceWriter keeps what is written. hangs fires when nothing was for some time.
type silenceWriter struct {
	bytes.Buffer
	silence time.Duration
	hangs   *time.Timer
}

func (w *silenceWriter) Write(p []byte) (int, error) {
	w.hangs.Reset(w.silence)
	return w.Buffer.Write(p)
}
