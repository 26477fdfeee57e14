package kv

import (
	"embed"
	"strings"
)

// scripts are the Lua scripts that run inside the store.
//
//go:embed lua/*.lua lua/parts/*.lua
var scripts embed.FS

// Script returns a script that does not work on a channel. It panics if it does not exist.
func Script(name string) string {
	text, err := scripts.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// ChannelScript returns a channel script as it is sent to the store, with its fast version if it
// has one; see lua/parts/head.lua.
func ChannelScript(name string) string {
	fast, _ := scripts.ReadFile("lua/" + name + "_fast.lua")
	return joinParts(name, string(fast))
}

// FullChannelScript returns a channel script without its fast version.
func FullChannelScript(name string) string { return joinParts(name, "") }

func joinParts(name, fast string) string {
	script := Script(name)
	var text strings.Builder
	text.WriteString(Script("parts/head"))
	text.WriteString(fast)
	text.WriteString(Script("parts/core"))
	for _, part := range scriptParts(script) {
		text.WriteString(Script("parts/" + part))
	}
	text.WriteString(script)
	return text.String()
}

// scriptParts returns the parts that a script names in its first line.
func scriptParts(script string) []string {
	first, _, _ := strings.Cut(script, "\n")
	names, _ := strings.CutPrefix(first, "-- uses:")
	if names == first {
		return nil
	}
	return strings.Fields(names)
}
