package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
)

// print shows one result: as a JSON object, or as people read it.
func (c *cli) print(v any, human func(w io.Writer)) error {
	if !c.json {
		human(c.Out)
		return nil
	}
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	_, err = fmt.Fprintf(c.Out, "%s\n", b)
	return err
}

// table shows many things by their views: one JSON object per line, or aligned
// columns.
func table[T, V any](c *cli, things []T, view func(T) V, columns []string, cells func(V) []string) error {
	if len(things) == 0 && !c.json {
		_, err := fmt.Fprintln(c.Out, "none")
		return err
	}
	w := tabwriter.NewWriter(c.Out, 0, 4, 2, ' ', 0)
	if !c.json {
		writeRow(w, columns)
	}
	for _, t := range things {
		v := view(t)
		if err := c.print(v, func(io.Writer) { writeRow(w, cells(v)) }); err != nil {
			return err
		}
	}
	return w.Flush()
}

func writeRow(w io.Writer, cells []string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }

// words turns one kind of text into another: flags into scopes, modes into cells.
func words[To, From ~string](list []From) []To {
	out := make([]To, len(list))
	for i, word := range list {
		out[i] = To(word)
	}
	return out
}

func joined[T ~string](list []T) string { return strings.Join(words[string](list), ",") }

// fields shows one thing as aligned name and value lines.
func fields(pairs ...string) func(io.Writer) {
	return func(out io.Writer) {
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		for i := 0; i+1 < len(pairs); i += 2 {
			writeRow(w, pairs[i:i+2])
		}
		_ = w.Flush()
	}
}

// when shows a moment, or a dash for none.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// moment is a time for JSON: absent when there is none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}
