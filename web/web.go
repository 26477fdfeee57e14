// Package web embeds the web pages: the playground, built from src into dist, and
// the API reference in docs.
package web

import (
	"embed"
	"io/fs"
)

//go:embed dist docs
var files embed.FS

// Playground returns the files of the playground.
func Playground() fs.FS { return directory("dist") }

// Docs returns the files of the API reference.
func Docs() fs.FS { return directory("docs") }

func directory(name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // only if name is not a valid path
	}
	return sub
}
