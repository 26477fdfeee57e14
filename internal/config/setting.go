package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"telapi/internal/redact"
)

// setting is one field of Config as its tags describe it.
type setting struct {
	reflect.StructField
	name, section string
	oneof         []string
	secret        bool
}

// settings lists them in the order of the struct.
func settings() (all []setting) {
	section := ""
	for f := range reflect.TypeFor[Config]().Fields() {
		section = cmp.Or(f.Tag.Get("section"), section)
		if name := f.Tag.Get("env"); name != "" {
			s := setting{StructField: f, name: name, section: section, secret: f.Type == reflect.TypeFor[redact.Secret]()}
			if list := f.Tag.Get("oneof"); list != "" {
				s.oneof = strings.Split(list, ",")
			}
			all = append(all, s)
		}
	}
	return all
}

func (s setting) tag(name string) string { return s.Tag.Get(name) }

// kindIn is what narrows a text, and what is said of that kind, as in url:https.
func (s setting) kindIn(mode Mode) (kind, detail string) {
	tag := s.tag("kind")
	if mode == Serve {
		tag = cmp.Or(s.tag("serve"), tag)
	}
	kind, detail, _ = strings.Cut(tag, ":")
	return kind, detail
}

// allowed says which values a setting takes.
func (s setting) allowed(mode Mode) string {
	switch kind, detail := s.kindIn(mode); {
	case s.oneof != nil && s.Type == reflect.TypeFor[[]string]():
		return "comma-separated, each once: " + strings.Join(s.oneof, ", ")
	case s.oneof != nil:
		return strings.Join(s.oneof[:len(s.oneof)-1], ", ") + " or " + s.oneof[len(s.oneof)-1]
	case kind == "url" && s.secret:
		return "a URL with " + schemes(detail) + " and a host, special characters in user and password percent-encoded"
	case kind == "url":
		return "a URL with " + schemes(detail) + " and a host, without user, query and fragment"
	case kind == "list":
		return "comma-separated " + detail
	case kind == "pem":
		return "PEM certificates, raw or in base64"
	case kind == "base64pem":
		return "PEM in base64"
	case kind == "ice":
		return `comma-separated stun:, stuns:, turn: and turns: URLs, or a JSON list such as [{"urls":["turn:turn.example"],"username":"u","credential":"c"}]`
	case s.secret && s.tag("min") != "":
		return "at least " + s.tag("min") + " bytes"
	}
	switch s.Type {
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[int]():
		return fmt.Sprintf("a whole number from %s to %s", s.tag("min"), s.tag("max"))
	case reflect.TypeFor[time.Duration]():
		return fmt.Sprintf("a duration from %s to %s, such as %s", s.tag("min"), s.tag("max"), s.tag("default"))
	case reflect.TypeFor[[]netip.Prefix]():
		return "comma-separated IP addresses or CIDR ranges, such as 10.0.0.0/8"
	}
	return "any text"
}

func schemes(list string) string { return strings.ReplaceAll(list, ",", ":// or ") + "://" }

// show returns a value as it may be printed.
func (s setting) show(value string) string {
	const longest = 200
	kind, _ := s.kindIn(Dev)
	switch {
	case value == "":
		return ""
	case kind == "url":
		return maskURL(value)
	case s.secret:
		return redact.Placeholder
	case len(value) > longest:
		value = value[:longest] + "…"
	}
	return fmt.Sprintf("%q", redact.Text(value))
}
