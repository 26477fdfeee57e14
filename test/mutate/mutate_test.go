package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

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
