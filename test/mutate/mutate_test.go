package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func mutations(mutants []*mutant) []string {
	var list []string
	for _, m := range mutants {
		list = append(list, m.mutation)
	}
	return list
}

func TestGoMutants(t *testing.T) {
	const text = `package p

func f(a, b int, s string) bool {
	if a < b && s != "" {
		a = a + 1
	}
	switch s {
	case "x":
		return false
	}
	return a == b
}
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if _, err := new(types.Config).Check("p", set, []*ast.File{file}, info); err != nil {
		t.Fatal(err)
	}
	m := &goMutator{info: info, file: set.File(file.Pos()), text: []byte(text), next: 1}
	ast.Inspect(file, m.visit)
	want := []string{
		`a < b && s != "" becomes true`, `a < b && s != "" becomes false`, `a < b becomes true`, `s != "" becomes true`, "a < b becomes a <= b",
		"without a = a + 1", "a + 1 becomes a - 1", `without case "x"`, "return false becomes true", "not a == b",
	}
	if got := mutations(m.mutants); !slices.Equal(got, want) {
		t.Errorf("mutants\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	changed := string(m.instrumented())
	for _, part := range []string{
		`if ((((((((a < b) || mutantOn(3))) || mutantOn(5) && a == b) && ((s != "") || mutantOn(4))) || mutantOn(1))) && !mutantOn(2)) {`,
		"if !mutantOn(6) { a = mutantAdd(7, a ,  1) }", `case mutantCase(8, "x"):`, "return (false != mutantOn(9))", "return ((a == b) != mutantOn(10))",
	} {
		if !strings.Contains(changed, part) {
			t.Errorf("the changed file does not contain %s:\n%s", part, changed)
		}
	}
	if _, err := parser.ParseFile(set, "p.go", changed, 0); err != nil {
		t.Error(err)
	}
}

func TestLuaMutants(t *testing.T) {
	const text = `-- if a comment then
if a and (b < 1 or c) then return { 'x' } end
while from <= #item do
  redis.call('HDEL', f(1), 'if')
  local value = a == '' and 1 or g(d)
end
save()
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.lua"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mutants, err := luaMutants(dir, "x.lua")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a and (b < 1 or c) becomes true", "a and (b < 1 or c) becomes false", "a becomes true", "(b < 1 or c) becomes true",
		"b < 1 becomes false", "c becomes false", "b <= 1 in place of <", "from <= #item becomes false", "from < #item in place of <=",
		"without redis.call('HDEL', f(1), 'if')", "a == '' and 1 becomes false", "a == '' becomes true", "1 becomes true", "g(d) becomes false",
		"a ~= '' in place of ==", "without save()",
	}
	if got := mutations(mutants); !slices.Equal(got, want) {
		t.Errorf("mutants\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if m := mutants[4]; m.line != 2 || !strings.Contains(m.script, "if a and (false or c) then") {
		t.Errorf("line %d\n%s", m.line, m.script)
	}
}

func TestStaleEquivalentIsReported(t *testing.T) {
	mutants := []*mutant{{file: "a.go", text: "if a {", mutation: "a becomes true"}}
	path := filepath.Join(t.TempDir(), "equivalent.txt")
	for content, problem := range map[string]string{
		"# comment\na.go\tif a {\ta becomes true\tit is never false\n": "",
		"a.go\tif b {\ta becomes true\tit is never false\n":            "stale line",
		"a.go\tif a {\ta becomes true\n":                               "invalid line",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		accepted, err := subtractEquivalents(mutants, path)
		if problem == "" && (err != nil || !accepted[mutants[0]]) {
			t.Errorf("%q: accepted %v, error %v", content, accepted, err)
		}
		if problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%q: error %v, want %s", content, err, problem)
		}
	}
}

func TestTooManySurvivorsAreAnError(t *testing.T) {
	mutants := make([]*mutant, 10)
	for i := range mutants {
		mutants[i] = &mutant{unit: "p", file: "p/a.go", line: i, mutation: "x becomes true", killed: i > 0}
	}
	var output bytes.Buffer
	if err := report(&output, mutants, nil); err != nil || !strings.Contains(output.String(), "survived: p/a.go:0: x becomes true") {
		t.Errorf("9 of 10: error %v, output\n%s", err, &output)
	}
	mutants[1].killed = false
	if err := report(&output, mutants, nil); err == nil {
		t.Error("no error for 8 of 10")
	}
}

// The list of the simulation, the equivalent mutants and the scripts that are read from files follow
// the code.
func TestMutantsFollowCode(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	mutants, overlay := allMutants(root) // ends the process if the list of the simulation is stale
	if _, err := subtractEquivalents(mutants, "equivalent.txt"); err != nil {
		t.Error(err)
	}
	readScripts := false
	for path, text := range overlay {
		if _, err := parser.ParseFile(token.NewFileSet(), path, text, 0); err != nil {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
		readScripts = readScripts || bytes.Contains(text, []byte("MUTANT_SCRIPTS"))
	}
	if !readScripts {
		t.Error("no file reads the scripts of a mutant")
	}
}
