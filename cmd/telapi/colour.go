package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"

	"telapi/internal/config"
)

// style is an escape sequence that changes how a terminal shows the following text.
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

// paintRows paints the header of a table, or the label in each line of an object.
func (c *cli) paintRows(text string, isTable bool) string {
	if isTable {
		header, _, _ := strings.Cut(text, "\n")
		return c.paint(c.Out, bold, header) + text[len(header):]
	}
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		label, _, _ := strings.Cut(line, "  ")
		lines[i] = c.paint(c.Out, bold, label) + line[len(label):]
	}
	return strings.Join(lines, "")
}
