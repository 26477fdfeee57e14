//go:build ignore

// Prints the bill of materials of a Go binary, as CycloneDX JSON: what the
// linker recorded, so that it cannot differ from what is shipped.
//
//	go run scripts/sbom.go bin/telapi 0.9.18
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"log"
	"os"
)

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: go run scripts/sbom.go BINARY VERSION")
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	components := []component{{"platform", "go", info.GoVersion, "pkg:generic/go@" + info.GoVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component{"library", m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version})
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	err = out.Encode(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":   map[string]any{"component": component{"application", "telapi", os.Args[2], ""}},
		"components": components,
	})
	if err != nil {
		log.Fatal(err)
	}
}
