// Package web holds pages as they are served: the playground, which is built
// from the sources beside dist, and the reference, which is Swagger UI (the
// package swagger-ui-dist 5.34.1, its files compressed by gzip -9n) and a page
// around it. Both are committed, flat, and embedded here.
package web

import (
	"embed"
	"io/fs"
)

//go:embed dist docs
var files embed.FS

// Playground has the playground's files, by name.
func Playground() fs.FS { return folder("dist") }

// Docs has the reference's files, by name.
func Docs() fs.FS { return folder("docs") }

func folder(name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // the name is no path: seen by whoever changes it
	}
	return sub
}
