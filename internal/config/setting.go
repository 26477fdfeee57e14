package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"telapi/internal/redact"
)

// setting is one field of Config as its tags describe it.
type setting struct {
	section, name, def, doc string
	min, max                string
	kind, serve, required   string
	oneof                   []string
	typ                     reflect.Type
	index                   []int
	secret                  bool
	opaque                  bool // a secret to be taken to the letter
}

// settings lists them in the order of the struct.
func settings() (all []setting) {
	section := ""
	for f := range reflect.TypeFor[Config]().Fields() {
		if title := f.Tag.Get("section"); title != "" {
			section = title
		}
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		s := setting{
			section: section, name: name, def: f.Tag.Get("default"), doc: f.Tag.Get("doc"),
			min: f.Tag.Get("min"), max: f.Tag.Get("max"),
			kind: f.Tag.Get("kind"), serve: f.Tag.Get("serve"), required: f.Tag.Get("required"),
			typ: f.Type, index: f.Index,
			secret: f.Type == reflect.TypeFor[redact.Secret](),
		}
		if list := f.Tag.Get("oneof"); list != "" {
			s.oneof = strings.Split(list, ",")
		}
		s.opaque = s.secret && s.kind == ""
		all = append(all, s)
	}
	return all
}

func (s setting) kindIn(mode Mode) string {
	if mode == Serve && s.serve != "" {
		return s.serve
	}
	return s.kind
}

// allowed says which values a setting takes.
func (s setting) allowed(mode Mode) string {
	switch kind := s.kindIn(mode); {
	case s.oneof != nil && s.typ == reflect.TypeFor[[]string]():
		return "comma-separated, each once: " + strings.Join(s.oneof, ", ")
	case s.oneof != nil:
		return strings.Join(s.oneof[:len(s.oneof)-1], ", ") + " or " + s.oneof[len(s.oneof)-1]
	case strings.HasPrefix(kind, "url:"):
		schemes := strings.ReplaceAll(kind[len("url:"):], ",", ":// or ") + "://"
		if s.secret {
			return "a URL with " + schemes + " and a host, special characters in user and password percent-encoded"
		}
		return "a URL with " + schemes + " and a host, without user, query and fragment"
	case strings.HasPrefix(kind, "list:"):
		return "comma-separated " + kind[len("list:"):]
	case kind == "pem":
		return "PEM certificates, raw or in base64"
	case kind == "base64pem":
		return "PEM in base64"
	case kind == "ice":
		return `comma-separated stun:, stuns:, turn: and turns: URLs, or a JSON list such as [{"urls":["turn:turn.example"],"username":"u","credential":"c"}]`
	case s.secret && s.min != "":
		return "at least " + s.min + " bytes"
	}
	switch s.typ {
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[int]():
		return fmt.Sprintf("a whole number from %s to %s", s.min, s.max)
	case reflect.TypeFor[time.Duration]():
		return fmt.Sprintf("a duration from %s to %s, such as %s", s.min, s.max, s.def)
	case reflect.TypeFor[[]netip.Prefix]():
		return "comma-separated IP addresses or CIDR ranges, such as 10.0.0.0/8"
	}
	return "any text"
}

// show returns a value as it may be printed.
func (s setting) show(value string) string {
	const longest = 200
	switch {
	case value == "":
		return ""
	case strings.HasPrefix(s.kind, "url:"):
		return maskURL(value)
	case s.secret:
		return redact.Mark
	case len(value) > longest:
		value = value[:longest] + "…"
	}
	return fmt.Sprintf("%q", redact.Text(value))
}
