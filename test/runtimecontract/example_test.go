package runtimecontract

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Another module imports callruntime through a replace directive.
func TestExampleModuleCompiles(t *testing.T) {
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "runtime-go"), ".")
	build.Dir = filepath.Join("..", "..", "examples", "runtime-go")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\nIf go.mod is out of date, run go mod tidy in examples/runtime-go.", err, out)
	}
}
