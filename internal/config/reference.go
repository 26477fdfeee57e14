package config

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"telapi/internal/redact"
)

// Setting is one line of the effective configuration, fit to be printed.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source Source `json:"source"`
	Doc    string `json:"doc"`
}

// Effective lists every setting with the value that holds, secrets masked, and
// where it came from.
func (c Config) Effective() []Setting {
	var list []Setting
	fields := reflect.ValueOf(c)
	for _, s := range settings() {
		value := ""
		switch v := fields.FieldByIndex(s.Index).Interface().(type) {
		case redact.Secret:
			value = s.show(v.Reveal())
		case []netip.Prefix:
			parts := make([]string, len(v))
			for i, p := range v {
				parts[i] = p.String()
			}
			value = strings.Join(parts, ",")
		case []string:
			value = strings.Join(v, ",")
		default:
			value = fmt.Sprint(v)
		}
		list = append(list, Setting{s.name, value, cmp.Or(c.sources[s.name], Default), s.tag("doc")})
	}
	return list
}

const intro = `# Configuration

<!-- Generated from internal/config; ` + "`make generate`" + ` rewrites it. -->

telapi is configured by environment variables and by nothing else. An empty
variable counts as unset. White space around a value is ignored, except in
secrets. A value that is not allowed, or an unknown name that begins with
` + "`TELAPI_`" + `, keeps the service from starting; all such problems are reported
together. ` + "`telapi config`" + ` prints what holds and where it came from, with
secrets masked.

Three kinds of commands read the configuration. ` + "`serve`" + ` insists on
everything production needs. ` + "`dev`" + ` makes up what is missing. Administration
commands need only the settings of the stores.

The OpenTelemetry libraries also read the standard ` + "`OTEL_*`" + ` variables, such as
` + "`OTEL_EXPORTER_OTLP_HEADERS`" + ` (` + "`name=value`" + `, separated by commas) or ` + "`OTEL_RESOURCE_ATTRIBUTES`" + `.
`

// Reference renders docs/configuration.md.
func Reference() []byte {
	var b bytes.Buffer
	b.WriteString(intro)
	section := ""
	for _, s := range settings() {
		if s.section != section {
			section = s.section
			fmt.Fprintf(&b, "\n## %s\n\n| Name | Default | Allowed | Meaning |\n|---|---|---|---|\n", section)
		}
		def := "none"
		if value := s.tag("default"); value != "" {
			def = "`" + value + "`"
		}
		doc := s.tag("doc")
		if command := s.tag("required"); command != "" {
			doc += " Required by telapi " + command + "."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.name, def, cell(s.allowed(Dev)), cell(doc))
	}
	b.WriteString("\n## Deprecated\n\nSetting one of these is answered with a warning at start and a failed check in `telapi doctor`.\n\n| Name | What to do |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(deprecated)) {
		fmt.Fprintf(&b, "| `%s` | It %s. |\n", name, cell(deprecated[name]))
	}
	return b.Bytes()
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
