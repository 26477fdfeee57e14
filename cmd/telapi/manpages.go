//go:build manpages

package main

// With the build tag manpages, this program writes a manual page for each command of telapi
// into a directory. SOURCE_DATE_EPOCH is the date on the pages, in Unix seconds.
//
//	go run -tags manpages ./cmd/telapi DIRECTORY

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func run(args []string, epoch string) error {
	if len(args) != 1 {
		return errors.New("usage: manpages DIRECTORY")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("invalid SOURCE_DATE_EPOCH %q: use Unix seconds", epoch)
	}
	date := time.Unix(seconds, 0).UTC()
	root := (&cli{}).root()
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &date, Source: "telapi " + root.Version, Manual: "telapi"}, args[0])
}
