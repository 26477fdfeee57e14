package kv

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// definition matches a function or a constant.
var definition = regexp.MustCompile(`(?m)^local (?:function (\w+)|([A-Z][A-Z_]+)\b)`)

// A script that misses a part fails only where it uses it, which may be rare.
func TestScriptsNameTheirParts(t *testing.T) {
	part := map[string]string{} // of each function and constant
	entries, err := fs.ReadDir(scripts, "lua/parts")
	testkit.Must(t, err)
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".lua")
		for _, m := range definition.FindAllStringSubmatch(Script("parts/"+name), -1) {
			part[m[1]+m[2]] = name
		}
	}
	names, err := fs.Glob(scripts, "lua/*.lua")
	testkit.Must(t, err)
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".lua")
		script := Script(name)
		if strings.HasSuffix(name, "_fast") || !strings.Contains(script, "loadChannel(") && !strings.Contains(script, "inspect(") {
			continue
		}
		parts := scriptParts(script)
		used := map[string]bool{}
		texts := map[string]string{"": script}
		for _, p := range parts {
			texts[p] = Script("parts/" + p)
		}
		for in, text := range texts {
			for defined, from := range part {
				if from != "core" && from != "head" && from != in && regexp.MustCompile(`\b`+defined+`\b`).MatchString(text) {
					used[from] = true
				}
			}
		}
		for from := range used {
			if !slices.Contains(parts, from) {
				t.Errorf("%s uses the part %s, but does not name it", name, from)
			}
		}
		for _, from := range parts {
			if !used[from] {
				t.Errorf("%s names the part %s, but does not use it", name, from)
			}
		}
	}
}
