package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64
}

// report prints the output of what fails, and the progress: lines that start with "… ".
type report struct {
	out   io.Writer
	total int // packages

	done    []event             // one per package
	running []string            // packages
	output  map[string][]string // of a package that runs, and of its tests that run or have failed
}

func newReport(total int, out io.Writer) *report {
	return &report{out: out, total: total, output: map[string][]string{}}
}

// add handles one line of output.
func (r *report) add(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		_, _ = fmt.Fprintf(r.out, "%s\n", line)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		_, _ = fmt.Fprint(r.out, e.Output)
	case "start":
		r.running = append(r.running, short(e.Package))
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "skip":
		delete(r.output, key)
	case "fail":
		_, _ = fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		delete(r.output, key)
	}
	if e.Test == "" && (e.Action == "pass" || e.Action == "skip" || e.Action == "fail") {
		r.finish(e)
	}
}

// finish prints the progress after a package. A package that crashed leaves tests
// without a result.
func (r *report) finish(e event) {
	for key, lines := range r.output {
		if strings.HasPrefix(key, e.Package+" ") {
			if e.Action == "fail" {
				_, _ = fmt.Fprint(r.out, strings.Join(lines, ""))
			}
			delete(r.output, key)
		}
	}
	r.done = append(r.done, e)
	r.running = slices.DeleteFunc(r.running, func(name string) bool { return name == short(e.Package) })
	if len(r.done) < r.total {
		_, _ = fmt.Fprintf(r.out, "… %d of %d packages; running: %s\n", len(r.done), r.total, strings.Join(r.running, ", "))
		return
	}
	slices.SortFunc(r.done, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	var slowest []string
	for _, e := range r.done[:min(5, len(r.done))] {
		slowest = append(slowest, fmt.Sprintf("%s %s", short(e.Package), time.Duration(e.Elapsed*float64(time.Second)).Round(time.Second)))
	}
	_, _ = fmt.Fprintf(r.out, "… %d packages; slowest: %s\n", r.total, strings.Join(slowest, ", "))
}

// short returns a package without the module's name.
func short(name string) string { return strings.TrimPrefix(name, "telapi/") }
