// Command overlay writes a build overlay with which a run of the simulation does
// not depend on the Go runtime's random numbers and on the speed of the machine.
//
// It copies files of the runtime with the edits below into a directory, and writes
// overlay.json for go test -overlay. With GOMAXPROCS=1, the goroutines of a synctest
// bubble then always run in the same order. If an edit does not fit this version of
// Go, it fails, and the simulation is not built.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// edit replaces a text that occurs once in a file.
type edit struct{ file, old, replacement string }

var edits = []edit{
	// select tries its cases in an order that depends on the bubble's time only.
	{"select.go", "j := cheaprandn(uint32(norder + 1))", `j := cheaprandn(uint32(norder + 1))
		if bubble := getg().bubble; bubble != nil {
			j = uint32((uint64(bubble.now)*0x9e3779b97f4a7c15>>32 + uint64(i)) % uint64(norder+1))
		}`},
	// Timers of a bubble that are due at the same time fire in the order in which
	// they were started.
	{"time.go", "t.rand = cheaprand()", "fakeTimers++\n\t\t\tt.rand = fakeTimers"},
	{"time.go", "// less reports whether tw is less than other.", "var fakeTimers uint32\n\n// less reports whether tw is less than other."},
	// The order of a map depends on its keys and on its history only.
	{"rand.go", "func maps_rand() uint64 {\n\treturn rand()", "func maps_rand() uint64 {\n\treturn 0"},
	{"alg.go", "hashkey[i] = uintptr(bootstrapRand())", "hashkey[i] = uintptr(i + 1)"},
	{"alg.go", "key[i] = bootstrapRand()", "key[i] = uint64(i + 1)"},
	// Random numbers of math/rand/v2 depend on the bubble's time and on how many were drawn
	// at that instant. The number of all draws would depend on what earlier bubbles have cached.
	{"rand.go", "func rand() uint64 {\n", `func rand() uint64 {
	if bubble := getg().bubble; bubble != nil {
		if bubble.rands++; bubble.randsAt != bubble.now {
			bubble.rands, bubble.randsAt = 1, bubble.now
		}
		z := (uint64(bubble.now) + bubble.rands) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		return z ^ z>>31
	}
`},
	{"synctest.go", "type synctestBubble struct {\n", "type synctestBubble struct {\n\trands uint64\n\trandsAt int64\n"},
	// Time passes while a goroutine waits for a mutex, because the store's client holds one
	// while it closes connections.
	{"runtime2.go", "\twaitReasonSyncCondWait:          true,\n", "\twaitReasonSyncCondWait:          true,\n\twaitReasonSyncMutexLock:         true,\n"},
	// How long a goroutine has waited for a mutex, which decides whether it gets it next, is
	// counted in the bubble's time.
	{"sema.go", "func internal_sync_nanotime() int64 {\n", `func internal_sync_nanotime() int64 {
	if bubble := getg().bubble; bubble != nil {
		return bubble.now
	}
`},
	// A goroutine that yields runs after all others that are ready, also if the scheduler has run
	// a multiple of 61 goroutines.
	{"proc.go", "if pp.schedtick%61 == 0 && !sched.runq.empty() {", "if false {"},
	// No goroutine is preempted because it runs for a long time, or loses its
	// processor because a system call takes long.
	{"proc.go", "func retake(now int64) uint32 {\n\tn := 0", "func retake(now int64) uint32 {\n\treturn 0\n\tn := 0"},
}

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: overlay DIRECTORY")
	}
	dir, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	texts, err := edited()
	if err != nil {
		return err
	}
	replace := map[string]string{}
	for file, text := range texts {
		copied := filepath.Join(dir, filepath.Base(file)+".txt") // not a package of this module
		replace[file] = copied
		if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644)
}

// edited returns the edited files by their paths.
func edited() (texts map[string]string, err error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	texts = map[string]string{}
	for _, e := range edits {
		file := filepath.Join(strings.TrimSpace(string(out)), "src/runtime", e.file)
		text, known := texts[file]
		if !known {
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			text = string(raw)
		}
		if strings.Count(text, e.old) != 1 {
			return nil, fmt.Errorf("adapt the edit of %s to this version of Go: it does not contain %q once", file, e.old)
		}
		texts[file] = strings.Replace(text, e.old, e.replacement, 1)
	}
	return texts, nil
}
