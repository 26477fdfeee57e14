// Package lua owns the scripts by which service and runtimes change a channel.
// They are part of the contract: a runtime in another language runs the same.
package lua

import (
	_ "embed" // the scripts
)

//go:embed channel.lua
var prelude string

// The scripts of a runtime, ready to be sent.
var (
	//go:embed claim.lua
	claim string
	//go:embed commit.lua
	commit string
	//go:embed send_usual.lua
	sendUsual string
	//go:embed send.lua
	send string
	//go:embed end.lua
	end string
	//go:embed await.lua
	await string
	//go:embed cancel.lua
	cancel string
	//go:embed touch.lua
	touch string
)

// Channel makes a script of a channel whole: what all of them share comes first.
func Channel(script string) string { return prelude + script }

// Claim is claim.lua, made whole; the others likewise.
func Claim() string { return Channel(claim) }

// Commit is commit.lua.
func Commit() string { return Channel(commit) }

// Send is send.lua, after a short way for what is usual.
func Send() string { return sendUsual + Channel(send) }

// End is end.lua.
func End() string { return Channel(end) }

// Await is await.lua.
func Await() string { return Channel(await) }

// Cancel is cancel.lua.
func Cancel() string { return Channel(cancel) }

// Touch is touch.lua.
func Touch() string { return Channel(touch) }
