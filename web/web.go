// Package web holds the playground's pages as they are served. They are built
// from the sources beside dist, which is committed, flat, and embedded here.
package web

import (
	"embed"
	"io/fs"
)

//go:embed dist
var dist embed.FS

// Files are the playground's, by name.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is no path: seen by whoever changes it
	}
	return files
}
