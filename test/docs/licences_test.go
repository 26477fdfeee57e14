package docs

import (
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// accepted are phrases of licences that allow to distribute the program under the
// Apache License 2.0.
var accepted = []string{
	"Apache License",
	"Permission is hereby granted, free of charge",                                                   // MIT
	"Redistribution and use in source and binary forms, with or without modification, are permitted", // BSD
	"Mozilla Public License", // for unmodified files
}

func TestEveryModuleHasAnAcceptedLicence(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/licenses.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
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
// the SDK contain code of others, except for Swagger UI.
func TestNoticeListsEmbeddedFilesOfOthers(t *testing.T) {
	notice := readFile(t, "NOTICE")
	for _, manifest := range []string{"web/package.json", "sdk/js/package.json"} {
		if strings.Contains(readFile(t, manifest), `"dependencies"`) {
			t.Errorf("%s has dependencies, which NOTICE does not list", manifest)
		}
	}
	ours := []string{"web/docs/docs.css", "web/docs/docs.js", "web/docs/index.html"}
	err := filepath.WalkDir(filepath.Join(root, "web/docs"), func(file string, d fs.DirEntry, err error) error {
		name := path.Join("web/docs", d.Name())
		if err == nil && !d.IsDir() && !slices.Contains(ours, name) && path.Base(name) != "NOTICE.txt" && !strings.Contains(notice, name) {
			t.Errorf("NOTICE does not list %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`swagger-ui-dist (\d+\.\d+\.\d+)`).FindStringSubmatch(readFile(t, "web/web.go"))
	if version == nil || !strings.Contains(notice, "Swagger UI "+version[1]) {
		t.Errorf("NOTICE does not list Swagger UI with the version in web/web.go (%v)", version)
	}
}
