package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// subtractEquivalents returns the mutants in a file of accepted ones. Its lines have the
// file, the text of the line, the mutation and the reason, separated by tabs. Lines that
// match no mutant are an error, so that the list follows the code.
func subtractEquivalents(mutants []*mutant, path string) (map[*mutant]bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	accepted, stale := map[*mutant]bool{}, []error{}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 4 || fields[3] == "" {
			stale = append(stale, fmt.Errorf("invalid line %q in %s: use file, text, mutation and reason, separated by tabs", line, path))
			continue
		}
		found := false
		for _, m := range mutants {
			if m.file == fields[0] && m.text == fields[1] && m.mutation == fields[2] {
				accepted[m], found = true, true
			}
		}
		if !found {
			stale = append(stale, fmt.Errorf("stale line in %s: there is no mutant %q of %q in %s: remove or update the line", path, fields[2], fields[1], fields[0]))
		}
	}
	return accepted, errors.Join(stale...)
}
