package cli

import (
	"fmt"
	"io"
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

// table shows many results: one JSON object per line, or aligned columns.
func table[T any](c *cli, rows []T, columns []string, cells func(T) []string) error {
	if c.json {
		for _, r := range rows {
			if err := c.print(r, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(c.Out, "none")
		return err
	}
	w := tabwriter.NewWriter(c.Out, 0, 4, 2, ' ', 0)
	writeRow(w, columns)
	for _, r := range rows {
		writeRow(w, cells(r))
	}
	return w.Flush()
}

func writeRow(w io.Writer, cells []string) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = io.WriteString(w, cell)
	}
	_, _ = io.WriteString(w, "\n")
}

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
