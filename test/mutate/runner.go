package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// unit is a package whose mutants must be killed by its tests or by those of other
// packages, which run for the survivors.
type unit struct {
	path string
	also []string
	skip []string // files of the package in which nothing is decided
}

var units = []unit{
	{"internal/auth", []string{"test/e2e"}, nil},
	{"internal/callback", []string{"internal/redisstore", "test/e2e"}, []string{"html.go", "lint.go", "markdown.go"}}, // text for speech, and warnings
	{"internal/channel", []string{"internal/redisstore", "internal/httpapi", "internal/socket", "test/e2e"}, []string{"tracing.go"}},
	{"internal/command", []string{"internal/callback", "test/e2e"}, []string{"lint.go"}}, // warnings
	{"internal/ratelimit", []string{"internal/redisstore", "internal/httpapi", "internal/socket", "test/e2e"}, nil},
	{"internal/session", []string{"internal/sqlstore", "test/e2e"}, []string{"actions.go", "admin.go", "sweeper.go"}}, // not about tokens
}

const scriptDir = "internal/kv/lua"

// scriptTests are the packages whose tests are tried on mutants of scripts.
var scriptTests = []string{"internal/redisstore", "internal/runtimeapi"}

// scriptCalls are the beginnings of the functions that run a script, by file. Tests write its name
// to a file.
var scriptCalls = map[string]string{
	"internal/calls/channel.go":                "func (r *Runtime) exec(ctx context.Context, script, channelID string, args []string) rueidis.RedisResult {\n",
	"internal/redisstore/store.go":             "func (s *Store) exec(ctx context.Context, client rueidis.Client, script, channelID string, args []string) rueidis.RedisResult {\n",
	"internal/redisstore/replicated_test.go":   "func (s *channelFixture) script(script string, args ...string) (words []string) {\n",
	"internal/redisstore/channel_loss_test.go": "\trun := func(script string, args ...string) error {\n",
}

// replaceScripts adds a file to the overlay that reads the scripts from the directory in
// MUTANT_SCRIPTS, and files that trace their calls.
func replaceScripts(root string, overlay map[string][]byte) {
	for name, call := range scriptCalls {
		path := filepath.Join(root, name)
		before, after, found := strings.Cut(string(must(os.ReadFile(path))), call)
		if !found {
			check(fmt.Errorf("%s has no function %q", path, call))
		}
		overlay[path] = []byte(before + call + "\tkv.TraceScript(script)\n" + after)
	}
	path := filepath.Join(root, "internal/kv/scripts.go")
	const embedded = "//go:embed lua/*.lua\nvar scripts embed.FS\n"
	text := string(must(os.ReadFile(path)))
	if !strings.Contains(text, embedded) {
		check(fmt.Errorf("%s does not embed the scripts with %q", path, embedded))
	}
	text = strings.Replace(text, embedded, scriptFiles, 1)
	overlay[path] = []byte(strings.Replace(text, "\t\"embed\"\n", "\t\"embed\"\n\t\"os\"\n\t\"path/filepath\"\n", 1))
}

const scriptFiles = `//go:embed lua/*.lua
var embedded embed.FS

var scripts mutantFiles

type mutantFiles struct{}

func (mutantFiles) ReadFile(name string) ([]byte, error) {
	if text, err := os.ReadFile(filepath.Join(os.Getenv("MUTANT_SCRIPTS"), strings.TrimPrefix(name, "lua/"))); err == nil {
		return text, nil
	}
	return embedded.ReadFile(name)
}

func (mutantFiles) ReadDir(name string) ([]os.DirEntry, error) { return embedded.ReadDir(name) }

var traced sync.Map

// TraceScript writes the name of a script that runs for the first time to the file in MUTANT_TRACE.
func TraceScript(name string) {
	if path := os.Getenv("MUTANT_TRACE"); path != "" {
		if _, known := traced.LoadOrStore(name, true); !known {
			file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				panic(err)
			}
			fmt.Fprintln(file, name)
			file.Close()
		}
	}
}
`

type runner struct {
	*programs
	mutants []*mutant

	mu      sync.Mutex
	killers map[string][]string // of a unit: the subtests on embedded stores that killed its last mutants
}

// maxKillers is the number of subtests that are tried before the others.
const maxKillers = 8

func newRunner(root, dir string, overlay map[string][]byte, mutants []*mutant, workers int) *runner {
	return &runner{programs: newPrograms(root, dir, overlay, workers), mutants: mutants, killers: map[string][]string{}}
}

// run runs the mutants unit by unit.
func (r *runner) run() {
	for _, u := range units {
		for _, path := range append([]string{u.path}, u.also...) {
			r.runOn(path, func(m *mutant) bool { return m.unit == u.path })
		}
	}
	for _, path := range scriptTests {
		r.runOn(path, func(m *mutant) bool { return m.script != "" })
	}
	r.simulate()
}

// runOn runs the selected mutants that survived so far on the tests of a package.
func (r *runner) runOn(path string, selected func(*mutant) bool) {
	mutants := slices.DeleteFunc(slices.Clone(r.mutants), func(m *mutant) bool { return m.killed || !selected(m) })
	if len(mutants) == 0 {
		return
	}
	built := r.get(path)
	start := time.Now()
	var group errgroup.Group
	var done atomic.Int32
	group.SetLimit(r.workers)
	for _, m := range mutants {
		group.Go(func() error {
			m.killed = r.kills(m, built)
			if n := done.Add(1); n%50 == 0 {
				fmt.Printf("%s: %d of %d mutants tried on %s, %s\n", m.unit, n, len(mutants), path, time.Since(start).Round(time.Second))
			}
			return nil
		})
	}
	check(group.Wait())
	killed := len(mutants) - len(slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool { return m.killed }))
	fmt.Printf("%s: %d of %d mutants killed by %s, %s\n", mutants[0].unit, killed, len(mutants), path, time.Since(start).Round(time.Second))
}

// writeScript writes a changed script, whose name can have a directory.
func writeScript(dir, name, text string) {
	path := filepath.Join(dir, name)
	check(os.MkdirAll(filepath.Dir(path), 0o700))
	check(os.WriteFile(path, []byte(text), 0o600))
}

// kills runs the tests of a program that reach a mutant, which are sorted by duration:
// those on embedded stores, the quicker half, and the others.
func (r *runner) kills(m *mutant, built *program) bool {
	env := fmt.Sprintf("MUTANT=%d", m.number)
	if m.script != "" {
		dir := must(os.MkdirTemp(r.dir, "script"))
		writeScript(dir, must(filepath.Rel(scriptDir, m.file)), m.script)
		env = "MUTANT_SCRIPTS=" + dir
	}
	var tests, embedded []*test
	for _, t := range built.tests {
		if t.reached[strconv.Itoa(m.number)] || m.script != "" && built.mayRun(t, m.scripts) {
			tests = append(tests, t)
			if t.embedded > 0 {
				embedded = append(embedded, t)
			}
		}
	}
	if len(embedded) > 0 && r.killsEmbedded(m, built, embedded, env) {
		return true
	}
	half := (len(tests) + 1) / 2
	for _, part := range [][]*test{tests[:half], tests[half:]} {
		if len(part) > 0 {
			if failed, _ := r.fails(built, part, "", env); failed {
				return true
			}
		}
	}
	return false
}

// killsEmbedded runs the subtests on embedded stores, first those that killed the last mutants of
// the same unit.
func (r *runner) killsEmbedded(m *mutant, built *program, tests []*test, env string) bool {
	unit := built.path + " " + m.unit
	r.mu.Lock()
	killers := r.killers[unit]
	r.mu.Unlock()
	var first []*test
	var subtests []string
	for _, name := range killers {
		parts := strings.SplitN(name, "/", 4) // test, embedded, subtest and its own
		for _, t := range tests {
			if t.name == parts[0] && !slices.Contains(first, t) {
				first = append(first, t)
			}
		}
		if len(parts) > 2 {
			subtests = append(subtests, regexp.QuoteMeta(parts[2]))
		}
	}
	failed, name := false, ""
	if len(first) > 0 {
		failed, name = r.fails(built, first, "/^embedded$/^("+strings.Join(subtests, "|")+")$", env)
	}
	if !failed {
		failed, name = r.fails(built, tests, "/^embedded$", env)
	}
	if strings.Contains(name, "/embedded") {
		r.mu.Lock()
		others := slices.DeleteFunc(slices.Clone(r.killers[unit]), func(s string) bool { return s == name })
		r.killers[unit] = append([]string{name}, others[:min(len(others), maxKillers-1)]...)
		r.mu.Unlock()
	}
	return failed
}
