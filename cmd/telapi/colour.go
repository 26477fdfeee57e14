package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"

	"telapi/internal/config"
)

// style is a sequence that a terminal interprets.
type style string

const (
	bold   style = "\x1b[1m"
	faint  style = "\x1b[2m"
	red    style = "\x1b[1;31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	plain  style = "\x1b[0m"
)

func isTerminal(w io.Writer) bool {
	file, isFile := w.(*os.File)
	return isFile && isatty.IsTerminal(file.Fd())
}

// paint returns the text in a style if w shows colours.
func (c *cli) paint(w io.Writer, s style, text string) string {
	if text == "" || !config.Color(c.Env, isTerminal(w)) {
		return text
	}
	return string(s) + text + string(plain)
}

// printProblem prints an error to stderr.
func (c *cli) printProblem(format string, args ...any) {
	_, _ = fmt.Fprintln(c.Err, c.paint(c.Err, red, "telapi:"), fmt.Sprintf(format, args...))
}

// printWarning prints a warning to stderr.
func (c *cli) printWarning(format string, args ...any) {
	_, _ = fmt.Fprintln(c.Err, c.paint(c.Err, yellow, "warning:"), fmt.Sprintf(format, args...))
}

// paintRows paints the header of a table, or the labels of an object.
func (c *cli) paintRows(text string, isTable bool) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		header, rest := line, ""
		if isTable {
			header, rest = strings.TrimSuffix(line, "\n"), "\n"
		} else if end := strings.Index(line, "  "); end >= 0 {
			header, rest = line[:end], line[end:]
		}
		if line != "" {
			lines[i] = c.paint(c.Out, bold, header) + rest
		}
		if isTable {
			break
		}
	}
	return strings.Join(lines, "")
}
