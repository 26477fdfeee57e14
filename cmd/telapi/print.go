package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"telapi/internal/strictjson"
)

// table is a list of results. The text output shows the members named in columns;
// the JSON output shows all.
type table struct {
	rows    []any
	columns []string
}

func newTable[T any](items []T, columns ...string) table {
	t := table{columns: columns}
	for _, item := range items {
		t.rows = append(t.rows, item)
	}
	return t
}

// print writes a result: with --json one JSON object per line, otherwise a table or
// one line per member.
func (c *cli) print(result any) error {
	t, isTable := result.(table)
	if !isTable {
		t.rows = []any{result}
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	if isTable && len(t.rows) == 0 {
		writeRow(w, "none")
	} else if isTable {
		writeRow(w, strings.ToUpper(label(strings.Join(t.columns, "\t"))))
	}
	for _, row := range t.rows {
		object, err := encode(row)
		if err != nil {
			return err
		}
		names, values := members(object)
		switch {
		case c.json:
			_, _ = fmt.Fprintf(c.Out, "%s\n", object)
		case isTable:
			var cells []string
			for _, column := range t.columns {
				cells = append(cells, values[column])
			}
			writeRow(w, cells...)
		default:
			for _, name := range names {
				writeRow(w, label(name), values[name])
			}
		}
	}
	if c.json {
		return nil
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(c.Out, c.paintRows(text.String(), isTable))
	return err
}

// printAs is print for a result with its own text format.
func (c *cli) printAs(result any, text func(w io.Writer)) error {
	if c.json {
		return c.print(result)
	}
	text(c.Out)
	return nil
}

// note prints a hint to stderr, unless the output is JSON.
func (c *cli) note(text string) {
	if !c.json {
		_, _ = fmt.Fprintln(c.Err, text)
	}
}

func writeRow(w io.Writer, cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }

// encode returns v in JSON, with all times in UTC with milliseconds.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true), json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
		return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
	})))
	if err != nil {
		return nil, fmt.Errorf("print result: %w", err)
	}
	return b, nil
}

// members returns the names of a JSON object's members in order and their values as text.
func members(object []byte) (names []string, values map[string]string) {
	values = map[string]string{}
	for name, value := range strictjson.Members(object) {
		names = append(names, name)
		var date time.Time
		var text string
		var list []string
		switch {
		case value.Kind() == '"' && json.Unmarshal(value, &date) == nil:
			text = date.Format(time.RFC3339)
		case json.Unmarshal(value, &text) == nil: // a string or null
		case json.Unmarshal(value, &list) == nil:
			text = cmp.Or(strings.Join(list, ","), "none")
		default:
			text = string(value)
		}
		values[name] = printable(text)
	}
	return names, values
}

// label converts a member name to words: teamId to "team id".
func label(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// printable replaces characters that are not printable: they could control the terminal. It
// keeps zero-width joiners and non-joiners.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.Is(unicode.Join_Control, r) {
			return r
		}
		return utf8.RuneError
	}, text)
}
