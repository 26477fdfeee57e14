// Package lua embeds the scripts that run inside the key-value store. The
// channel scripts are part of the runtime contract: a runtime written in another
// language reads the same files.
package lua

import "embed"

//go:embed *.lua
var files embed.FS

// Script returns the text of name.lua. It panics if the file does not exist.
func Script(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Channel returns a channel script as it is sent to the store: channel.lua, which
// holds the code that all of them share, followed by name.lua.
func Channel(name string) string { return Script("channel") + Script(name) }

// FastChannel returns the channel script with its fast path, name_usual.lua, in
// front.
func FastChannel(name string) string { return Script(name+"_usual") + Channel(name) }
