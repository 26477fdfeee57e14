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

// setting is one field of Config with its tags.
type setting struct {
	reflect.StructField
	name, section string
	oneof         []string
	secret        bool
}

// settings returns all settings in the order of Config.
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

// kind splits the kind tag, such as url:https, into kind and detail.
func (s setting) kind(mode Mode) (kind, detail string) {
	tag := s.tag("kind")
	if mode == Serve {
		tag = cmp.Or(s.tag("serve"), tag)
	}
	kind, detail, _ = strings.Cut(tag, ":")
	return kind, detail
}

// valid describes the valid values of a setting.
func (s setting) valid(mode Mode) string {
	switch kind, detail := s.kind(mode); {
	case s.oneof != nil && s.Type == reflect.TypeFor[[]string]():
		return "a comma-separated list without duplicates of " + strings.Join(s.oneof, ", ")
	case s.oneof != nil:
		return strings.Join(s.oneof[:len(s.oneof)-1], ", ") + " or " + s.oneof[len(s.oneof)-1]
	case kind == "url":
		schemes := strings.ReplaceAll(detail, ",", ":// or ") + "://"
		if s.secret {
			return "a URL with " + schemes + " and a host, with special characters in user and password percent-encoded"
		}
		return "a URL with " + schemes + " and a host, without user, query and fragment"
	case kind == "list":
		return "comma-separated " + detail
	case kind == "pem":
		return "PEM certificates, plain or in base64"
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
		return fmt.Sprintf("an integer from %s to %s", s.tag("min"), s.tag("max"))
	case reflect.TypeFor[time.Duration]():
		return fmt.Sprintf("a duration from %s to %s, such as %s", s.tag("min"), s.tag("max"), s.tag("default"))
	case reflect.TypeFor[[]netip.Prefix]():
		return "comma-separated IP addresses or CIDR ranges, such as 10.0.0.0/8"
	}
	return "any text"
}

// masked returns a value for output, without secrets.
func (s setting) masked(value string) string {
	const maxLength = 200
	kind, _ := s.kind(Dev)
	switch {
	case value == "":
		return ""
	case kind == "url":
		return maskURL(value)
	case s.secret:
		return redact.Placeholder
	case len(value) > maxLength:
		value = value[:maxLength] + "…"
	}
	return fmt.Sprintf("%q", redact.Text(value))
}

// Setting is the effective value of one variable, with secrets masked.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source Source `json:"source"`
	Doc    string `json:"doc"`
}

// Effective returns the value and source of every setting.
func (c Config) Effective() (list []Setting) {
	fields := reflect.ValueOf(c)
	for _, s := range settings() {
		value := ""
		switch v := fields.FieldByIndex(s.Index).Interface().(type) {
		case redact.Secret:
			value = s.masked(v.Reveal())
		case []string:
			value = strings.Join(v, ",")
		case []netip.Prefix:
			value = strings.ReplaceAll(strings.Trim(fmt.Sprint(v), "[]"), " ", ",")
		default:
			value = fmt.Sprint(v)
		}
		list = append(list, Setting{s.name, value, cmp.Or(c.sources[s.name], Default), s.tag("doc")})
	}
	return list
}
