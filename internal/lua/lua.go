// Package lua embeds the scripts that run inside the key-value store. The
// channel scripts are part of the runtime contract: a runtime written in another
// language reads the same files.
package lua

import (
	"embed"
	"strings"
)

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

// Channel returns a channel script as it is sent to the store: base.lua and
// channel.lua, which all of them share, followed by the named files.
func Channel(names ...string) string { return Script("base", "channel") + Script(names...) }

// FastChannel returns Channel(names...) with the fast version of the last file,
// NAME_fast.lua, after base.lua.
func FastChannel(names ...string) string {
	return Script("base", names[len(names)-1]+"_fast", "channel") + Script(names...)
}
