package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// accepted are phrases of licences that allow to distribute the program under the
// Apache License 2.0.
var accepted = []string{
	"Apache License",
	"Permission is hereby granted, free of charge",                                                   // MIT
	"Redistribution and use in source and binary forms, with or without modification, are permitted", // BSD
}

func TestEveryModuleHasAnAcceptedLicence(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/licenses.sh")).Output()
	testkit.Must(t, err)
	licensed := map[string]bool{}
	for _, file := range regexp.MustCompile(`(?m)^={80}\n(.+) .+: .+\n={80}\n\n`).FindAllStringSubmatchIndex(string(out)+"\n", -1) {
		module := string(out[file[2]:file[3]])
		text, _, _ := strings.Cut(string(out[file[1]:]), strings.Repeat("=", 80))
		text = strings.Join(strings.Fields(text), " ")
		licensed[module] = licensed[module] || slices.ContainsFunc(accepted, func(phrase string) bool { return strings.Contains(text, phrase) })
	}
	for module, ok := range licensed {
		if !ok {
			t.Errorf("%s has no accepted licence: replace the module, or add its licence here and to NOTICE", module)
		}
	}
	if len(licensed) < 20 || !licensed["github.com/redis/rueidis"] {
		t.Errorf("licences of %d modules were found, want those of all modules", len(licensed))
	}
}

// Packages of npm are used to build and test only, so that neither the pages nor
// the SDK contain code of others.
func TestPagesContainNoPackagesOfOthers(t *testing.T) {
	for _, manifest := range []string{"web/package.json", "sdk/js/package.json"} {
		if strings.Contains(readFile(t, manifest), `"dependencies"`) {
			t.Errorf("%s has dependencies, which NOTICE does not list", manifest)
		}
	}
}
