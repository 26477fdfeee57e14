package kv

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/gopher-lua/parse"

	"telapi/test/testkit"
)

// A script that misses a function or a constant fails only where it uses it, which may be rare.
func TestScriptsAreComplete(t *testing.T) {
	t.Parallel()
	known := strings.Fields("KEYS ARGV rare unpack tonumber tostring ipairs function and or not")
	called := regexp.MustCompile(`(?:^|[^\w.])([A-Za-z_]\w*)\(|\b([A-Z_]{2,})\b`)
	texts := regexp.MustCompile(`'[^']*'|"[^"]*"`)
	for _, name := range ScriptNames() {
		script := texts.ReplaceAllString(Script(name), "")
		if _, err := parse.Parse(strings.NewReader(Script(name)), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range called.FindAllStringSubmatch(script, -1) {
			used := m[1] + m[2]
			if !slices.Contains(known, used) && !strings.Contains(script, "local function "+used+"(") {
				t.Errorf("%s uses %s, which is not defined", name, used)
			}
		}
	}
}

// Script finds names with regular expressions, for which sources must be simple.
func TestScriptSourcesAreSimple(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile(`(?m)^(?:local function|function|local) ([\w, ]+)`)
	unusual := regexp.MustCompile(`--[^ \n].*|.*\\['"].*`)
	defined := map[string]string{}
	files, err := scripts.ReadDir("lua")
	for _, file := range files {
		text, readErr := scripts.ReadFile("lua/" + file.Name())
		err = errors.Join(err, readErr)
		if found := unusual.Find(text); found != nil {
			t.Errorf("%s has a comment without a space, or an escaped quote: %s", file.Name(), found)
		}
		for _, m := range names.FindAllSubmatch(text, -1) {
			for name := range strings.SplitSeq(string(m[1]), ", ") {
				name = strings.TrimSpace(name)
				testkit.Equal(t, fmt.Sprintf("%s defines %s, which is also in", file.Name(), name), defined[name], "")
				defined[name] = file.Name()
			}
		}
	}
	if err != nil || len(defined) == 0 {
		t.Errorf("found %d definitions, %v", len(defined), err)
	}
}

// Rare functions are created at their first call, and only by the script that needs them.
func TestRareFunctionsAreCreatedLate(t *testing.T) {
	t.Parallel()
	script := Script("frame")
	created := strings.Index(script, "function rare(")
	for text, early := range map[string]bool{
		"local function addEntry(": true, "local function keepAlive(": false, "local function expireIn(": false,
	} {
		if at := strings.Index(script, text); at < 0 || at < created != early {
			t.Errorf("%q is at %d and rare functions are at %d, want it before them: %t", text, at, created, early)
		}
	}
	if !strings.Contains(script, "rare('keepAlive')()") || strings.Contains(script, "createStreams") {
		t.Error("want a call of a rare function, and no function that the script does not need")
	}
	if small := Script("frame", "MAX_SEEN", "64"); !strings.Contains(small, "seen - 64") || strings.Contains(small, "4096") {
		t.Error("the constant was not replaced")
	}
}
