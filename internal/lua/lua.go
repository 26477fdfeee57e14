// Package lua embeds the scripts that run inside the key-value store.
package lua

import (
	"embed"
	"strings"
)

// FastMarker is the line in channel.lua before which the fast version of a script
// is inserted.
const FastMarker = "-- MARKER: the fast version, X_fast.lua, goes before this line.\n"

//go:embed *.lua
var files embed.FS

// Script returns the named files joined, without their extension .lua. It panics
// if one does not exist.
func Script(names ...string) string {
	var script strings.Builder
	for _, name := range names {
		text, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err)
		}
		script.Write(text)
	}
	return script.String()
}

// Channel returns a channel script as it is sent to the store: channel.lua, with
// the script's fast version if it has one, and the script.
func Channel(name string) string {
	script := Script("channel", name)
	if fast, err := files.ReadFile(name + "_fast.lua"); err == nil {
		script = strings.Replace(script, FastMarker, string(fast)+FastMarker, 1)
	}
	return script
}
