package config

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

func TestReferenceIsUpToDate(t *testing.T) {
	const file = "../../docs/configuration.md"
	if *update {
		if err := os.WriteFile(file, Reference(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, Reference()) {
		t.Error("docs/configuration.md is outdated: run `make generate`")
	}
}
