package house

import (
	"maps"
	"strings"
	"testing"
	"testing/fstest"
)

// doc opens a file of a package that is documented well enough.
const doc = "// Package p owns what this test is about to show.\n"

// sound is a small house that breaks no rule. The cases below add to it.
var sound = map[string]string{
	"cmd/telapi/main.go":                doc + "package main\n\nimport (\n\t\"os\"\n\n\t\"telapi/internal/cli\"\n)\n\nfunc main() { os.Exit(cli.Run()) }\n",
	"internal/cli/cli.go":               doc + "package cli\n\nimport _ \"telapi/internal/app\"\n",
	"internal/app/app.go":               doc + "package app\n\nimport (\n\t_ \"telapi/internal/httpapi\"\n\t_ \"telapi/internal/sqlstore\"\n)\n",
	"internal/httpapi/api.go":           doc + "package httpapi\n\nimport (\n\t_ \"telapi/internal/auth\"\n\t_ \"telapi/internal/httpapi/problem\"\n)\n",
	"internal/httpapi/problem/body.go":  doc + "package problem\n",
	"internal/httpapi/routes.go":        "package httpapi\n\nimport \"net/http\"\n\nvar _ http.Handler\n",
	"internal/httpapi/api_test.go":      "package httpapi\n\nimport (\n\t_ \"telapi/internal/sqlstore\"\n\t_ \"telapi/test/servers\"\n)\n",
	"internal/sqlstore/store.go":        doc + "package sqlstore\n\nimport _ \"database/sql\"\n",
	"internal/sqlstore/schema/one.sql":  "-- The first table.\nSELECT 1;\n",
	"internal/auth/auth.go":             doc + "package auth\n\nimport (\n\t_ \"telapi/callruntime/wire\"\n\t_ \"telapi/internal/config\"\n\t_ \"telapi/internal/team\"\n)\n",
	"internal/team/team.go":             doc + "package team\n\nimport \"net/http\"\n\nconst found = http.StatusOK\n",
	"internal/config/config.go":         doc + "package config\n\nimport \"os\"\n\nvar read = os.Getenv\n",
	"callruntime/runtime.go":            doc + "package callruntime\n\nimport (\n\t_ \"github.com/redis/rueidis\"\n\n\t_ \"telapi/callruntime/wire\"\n)\n",
	"callruntime/wire/wire.go":          doc + "package wire\n",
	"test/servers/servers.go":           doc + "package servers\n\nimport (\n\t\"os\"\n\n\t_ \"telapi/internal/app\"\n)\n\nvar strict = os.Getenv(\"CI\")\n",
	"test/e2e/e2e_test.go":              doc + "package e2e\n",
	"web/node_modules/x/x.go":           "package utils\n",
	"internal/cli/testdata/broken.go":   "no Go at all",
	"internal/auth/testdata/utils/a.go": "package utils\n",
}

func load(t *testing.T, added map[string]string) *Tree {
	t.Helper()
	files := fstest.MapFS{}
	all := maps.Clone(sound)
	maps.Copy(all, added)
	for name, source := range all {
		files[name] = &fstest.MapFile{Data: []byte(source)}
	}
	tree, err := Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestASoundHousePassesEveryRule(t *testing.T) {
	tree := load(t, nil)
	for _, rule := range rules {
		for _, finding := range rule.check(tree) {
			t.Errorf("%s: %s", rule.name, finding)
		}
	}
}

func TestEveryRuleCanFail(t *testing.T) {
	long := doc + "package auth\n" + strings.Repeat("// A line.\n", maxLines)
	cases := []struct {
		rule   string
		broken string
		file   string
		source string
		says   string // part of the one finding; empty: none is expected
	}{
		{"imports run downwards", "a leaf imports the domain", "internal/fault/x.go", "package fault\n\nimport _ \"telapi/internal/auth\"\n",
			"internal/fault/x.go:3: internal/fault (leaves) must not import internal/auth (domain), which lies above it: everybody imports the leaves"},
		{"imports run downwards", "the domain imports an adapter", "internal/auth/x.go", "package auth\n\nimport _ \"telapi/internal/sqlstore\"\n",
			"internal/auth (domain) must not import internal/sqlstore (adapters), which lies above it: the domain decides"},
		{"imports run downwards", "the domain imports the runtime's client", "internal/auth/x.go", "package auth\n\nimport _ \"telapi/callruntime\"\n",
			"internal/auth (domain) must not import callruntime (callruntime), which lies above it"},
		{"imports run downwards", "an adapter imports another", "internal/httpapi/x.go", "package httpapi\n\nimport _ \"telapi/internal/redisstore\"\n",
			"internal/httpapi must not import internal/redisstore, another of the adapters: an adapter speaks one technology"},
		{"imports run downwards", "an adapter imports a part of another", "internal/httpapi/x.go", "package httpapi\n\nimport _ \"telapi/internal/sqlstore/schema\"\n",
			"internal/httpapi must not import internal/sqlstore/schema, another of the adapters"},
		{"imports run downwards", "app imports cli", "internal/app/x.go", "package app\n\nimport _ \"telapi/internal/cli\"\n",
			"internal/app (app) must not import internal/cli (cli), which lies above it"},
		{"imports run downwards", "the domain imports SQL", "internal/usage/x.go", "package usage\n\nimport _ \"database/sql\"\n",
			"internal/usage (domain) must not import database/sql: decisions are made and tested without a database"},
		{"imports run downwards", "the domain imports Redis", "internal/usage/x.go", "package usage\n\nimport _ \"github.com/redis/rueidis\"\n",
			"internal/usage (domain) must not import github.com/redis/rueidis"},
		{"imports run downwards", "callruntime imports a leaf", "callruntime/x.go", "package callruntime\n\nimport _ \"telapi/internal/fault\"\n",
			""},
		{"imports run downwards", "the wire types import the domain", "callruntime/wire/x.go", "package wire\n\nimport _ \"telapi/internal/auth\"\n",
			"callruntime/wire (leaves) must not import internal/auth (domain), which lies above it"},
		{"imports run downwards", "the service imports test code", "internal/app/x.go", "package app\n\nimport _ \"telapi/test/servers\"\n",
			"internal/app (app) must not import telapi/test/servers: code that only tests need"},
		{"imports run downwards", "a package stands nowhere", "internal/queue/x.go", "package queue\n",
			"internal/queue stands on no floor of the house: add it to a list in test/house/floors.go"},
		{"imports run downwards", "a name that only begins like a floor", "internal/authority/x.go", "package authority\n",
			"internal/authority stands on no floor"},

		{"calls stay in their place", "app ends the process", "internal/app/x.go", "package app\n\nimport \"os\"\n\nfunc stop() { os.Exit(1) }\n",
			"internal/app/x.go:5: os.Exit: only cmd ends the process"},
		{"calls stay in their place", "cli ends the process by logging", "internal/cli/x.go", "package cli\n\nimport \"log\"\n\nfunc stop() { log.Fatalf(\"no\") }\n",
			"log.Fatalf: only cmd ends the process"},
		{"calls stay in their place", "an adapter reads the environment", "internal/sqlstore/x.go", "package sqlstore\n\nimport system \"os\"\n\nvar url, _ = system.LookupEnv(\"X\")\n",
			"os.LookupEnv: only internal/config reads the environment"},
		{"calls stay in their place", "a dot import hides the calls", "internal/team/x.go", "package team\n\nimport . \"log\"\n",
			"dot import of \"log\": only cmd ends the process"},
		{"calls stay in their place", "the domain handles requests", "internal/team/x.go", "package team\n\nimport \"net/http\"\n\nfunc serve(w http.ResponseWriter) {}\n",
			"net/http.ResponseWriter: the domain answers calls"},
		{"calls stay in their place", "a test ends the process", "internal/team/x_test.go", "package team\n\nimport \"os\"\n\nfunc stop() { os.Exit(1) }\n", ""},

		{"packages say what they own", "no doc comment", "internal/bot/x.go", "package bot\n", "internal/bot: the doc comment has 0 words"},
		{"packages say what they own", "a doc comment that repeats the name", "internal/bot/x.go", "// Package bot is for bots.\npackage bot\n",
			"internal/bot: the doc comment has 3 words"},
		{"packages say what they own", "a comment that only a test carries", "internal/bot/x_test.go", doc + "package bot\n", ""},
		{"packages say what they own", "a junk drawer", "test/helpers/x.go", doc + "package helpers\n", "a package called helpers invites"},
		{"packages say what they own", "a junk drawer by its folder", "test/utils/x.go", doc + "package fine\n", "test/utils: a package called"},

		{"files tell one story", "a long file", "internal/auth/x.go", long, "internal/auth/x.go: 402 lines: split it"},
		{"files tell one story", "a long test", "internal/auth/x_test.go", long, ""},
		{"files tell one story", "a long generated file", "internal/auth/x.go", "// Code generated by hand. DO NOT EDIT.\n\n" + long, ""},

		{"nothing runs before main", "an init function", "internal/auth/x.go", "package auth\n\nfunc init() {}\n", "internal/auth/x.go:3: init runs before"},
		{"nothing runs before main", "a method called init", "internal/auth/x.go", "package auth\n\ntype T int\n\nfunc (T) init() {}\n", ""},

		{"nothing is postponed", "a mark in Go", "internal/auth/x.go", "package auth\n\n// TODO: check the scope.\nvar x int\n", "internal/auth/x.go:3: TODO: finish it"},
		{"nothing is postponed", "a mark in a script", "scripts/x.sh", "#!/bin/sh\n# FIXME quoting\n", "scripts/x.sh:2: FIXME: finish it"},
		{"nothing is postponed", "a word that contains a mark", "scripts/x.sh", "# TODOLIST\n", ""},
		{"nothing is postponed", "a mark in a string", "internal/auth/x.go", "package auth\n\nvar x = \"TODO\"\n", ""},

		{"files are formatted", "a file that gofmt would change", "internal/auth/x.go", "package auth\nvar  x int\n", "internal/auth/x.go: not formatted: run `make fmt`"},
	}
	failed := map[string]bool{}
	for _, c := range cases {
		t.Run(c.broken, func(t *testing.T) {
			tree := load(t, map[string]string{c.file: c.source})
			for _, rule := range rules {
				if rule.name != c.rule {
					continue
				}
				findings := rule.check(tree)
				switch {
				case c.says == "" && len(findings) > 0:
					t.Errorf("found %q, want nothing", findings)
				case c.says != "" && (len(findings) != 1 || !strings.Contains(findings[0], c.says)):
					t.Errorf("found %q, want one that says %q", findings, c.says)
				}
				failed[c.rule] = failed[c.rule] || len(findings) > 0
			}
		})
	}
	for _, rule := range rules {
		if !failed[rule.name] {
			t.Errorf("no case shows that the rule %q can fail", rule.name)
		}
	}
}

func TestAFileThatIsNotGoIsReported(t *testing.T) {
	_, err := Load(fstest.MapFS{"internal/auth/x.go": {Data: []byte("func")}})
	if err == nil || !strings.Contains(err.Error(), "internal/auth/x.go") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
