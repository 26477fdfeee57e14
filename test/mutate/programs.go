package main

import (
	"bufio"
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
	"sync"
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
	embedded time.Duration // for the subtest with this name; 0 if there is none
	reached  map[int]bool  // mutants of Go code
}

// programs builds and measures test programs when they are first needed.
type programs struct {
	root, dir, overlay string
	workers            int
	mu                 sync.Mutex
	built              map[string]*program
}

func newPrograms(root, dir string, files map[string][]byte, workers int) (*programs, error) {
	replace := map[string]string{}
	for path, content := range files {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(replace[path], content, 0o600); err != nil {
			return nil, err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return &programs{root: root, dir: dir, overlay: overlay, workers: workers, built: map[string]*program{}}, os.WriteFile(overlay, content, 0o600)
}

// get returns the test program of a package.
func (p *programs) get(path string) (*program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if built := p.built[path]; built != nil {
		return built, nil
	}
	built := &program{path: path, file: filepath.Join(p.dir, strings.ReplaceAll(path, "/", "_")+".test")}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay="+p.overlay, "-o", built.file, "./"+path)
	build.Dir = p.root
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests of %s: %w\n%s", path, err, output)
	}
	if err := p.measure(built); err != nil {
		return nil, err
	}
	p.built[path] = built
	return built, nil
}

// measure runs every test alone, without a mutant. All of them must pass.
func (p *programs) measure(built *program) error {
	start := time.Now()
	output, err := p.command(context.Background(), built, "-test.list=.").Output()
	if err != nil {
		return fmt.Errorf("list the tests of %s: %w", built.path, err)
	}
	names := strings.Fields(string(output))
	var group errgroup.Group
	group.SetLimit(p.workers)
	for i, name := range names {
		if strings.HasPrefix(name, "Benchmark") || slices.Contains(skipped, name) {
			continue
		}
		t := &test{name: name, reached: map[int]bool{}}
		built.tests = append(built.tests, t)
		group.Go(func() error { return p.measureTest(built, t, filepath.Join(p.dir, "trace"+strconv.Itoa(i))) })
	}
	err = group.Wait()
	slices.SortFunc(built.tests, func(a, b *test) int { return int(a.took - b.took) })
	fmt.Printf("%s: %d tests without mutants, %s\n", built.path, len(built.tests), time.Since(start).Round(time.Second))
	return err
}

func (p *programs) measureTest(built *program, t *test, trace string) error {
	start := time.Now()
	command := p.command(context.Background(), built, "-test.run=^"+t.name+"$", "-test.v", "-test.timeout=10m")
	command.Env = append(command.Env, "MUTANT_TRACE="+trace)
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s of %s fails without a mutant: %w\n%s", t.name, built.path, err, output)
	}
	t.took = time.Since(start)
	if match := embeddedTest.FindSubmatch(output); match != nil {
		t.embedded, err = time.ParseDuration(string(match[1]))
		t.embedded = max(t.embedded, 1)
		if err != nil {
			return err
		}
	}
	file, err := os.Open(trace)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _, _ = file.Close(), os.Remove(trace) }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		number, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		t.reached[number] = true
	}
	return nil
}

func (p *programs) command(ctx context.Context, built *program, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, built.file, args...)
	command.Dir, command.Env = filepath.Join(p.root, built.path), os.Environ()
	return command
}

var embeddedTest = regexp.MustCompile(`(?m)^ +--- PASS: \w+/embedded \((\S+)\)$`)

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// fails runs tests with a mutant, which env switches on, and returns the test that
// fails, or "". A mutant that makes the tests hang is found as well. subtests can limit
// the tests to some of their subtests.
func (p *programs) fails(built *program, tests []*test, subtests, env string) string {
	var names []string
	limit := 30 * time.Second
	for _, t := range tests {
		names = append(names, t.name)
		limit += 10 * t.took
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	command := p.command(ctx, built, "-test.run=^("+strings.Join(names, "|")+")$"+subtests, "-test.failfast", "-test.parallel=4", "-test.timeout="+limit.String())
	command.Env = append(command.Env, env)
	output, err := command.CombinedOutput()
	if err == nil {
		return ""
	}
	if match := failedTest.FindSubmatch(output); match != nil {
		return string(match[1])
	}
	if bytes.Contains(output, []byte("panic: test timed out")) {
		return "a timeout"
	}
	return "a panic"
}
