package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// table is a list of results. People see those members of each that are named
// as columns; programs get all.
type table struct {
	rows    []any
	columns []string
}

func tableOf[T any](things []T, view func(T) any, columns ...string) table {
	t := table{columns: columns}
	for _, thing := range things {
		t.rows = append(t.rows, view(thing))
	}
	return t
}

// itself is the view of what is shown as it is.
func itself[T any](thing T) any { return thing }

// print shows a result to programs as one JSON object on a line, and to people as
// aligned lines, or columns of a table, under the names of its members in words.
func (c *cli) print(v any) error {
	t, isTable := v.(table)
	switch {
	case !isTable:
		t.rows = []any{v}
	case c.json:
	case len(t.rows) == 0:
		_, err := fmt.Fprintln(c.Out, "none")
		return err
	}
	w := tabwriter.NewWriter(c.Out, 0, 4, 2, ' ', 0)
	if isTable && !c.json {
		writeRow(w, strings.ToUpper(inWords(strings.Join(t.columns, "\t"))))
	}
	for _, row := range t.rows {
		object, err := encode(row)
		switch {
		case err != nil:
			return err
		case c.json:
			_, _ = fmt.Fprintf(c.Out, "%s\n", object)
		case !isTable:
			for _, m := range members(object) {
				writeRow(w, inWords(m.name), m.value)
			}
		default:
			values := map[string]string{}
			for _, m := range members(object) {
				values[m.name] = m.value
			}
			var cells []string
			for _, column := range t.columns {
				cells = append(cells, values[column])
			}
			writeRow(w, cells...)
		}
	}
	return w.Flush()
}

// printAs is print for what people are told in words of its own.
func (c *cli) printAs(v any, human func(w io.Writer)) error {
	if c.json {
		return c.print(v)
	}
	human(c.Out)
	return nil
}

// note tells people something beside a result.
func (c *cli) note(text string) {
	if !c.json {
		_, _ = fmt.Fprintln(c.Err, text)
	}
}

func writeRow(w io.Writer, cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }

// encode gives all times the same zone and precision, wherever they come from.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true), json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
		return t.UTC().Truncate(time.Millisecond).MarshalJSON()
	})))
	if err != nil {
		return nil, fmt.Errorf("print result: %w", err)
	}
	return b, nil
}

type member struct{ name, value string }

// members are those of a JSON object, in its order, as people read them.
func members(object []byte) (list []member) {
	d := jsontext.NewDecoder(bytes.NewReader(object))
	_, _ = d.ReadToken() // its opening brace: encode has written it
	for d.PeekKind() == '"' {
		name, _ := d.ReadToken()
		m := member{name: name.String()}
		value, _ := d.ReadValue()
		var at time.Time
		var text string
		var texts []string
		switch {
		case value.Kind() == '"' && json.Unmarshal(value, &at) == nil:
			m.value = at.Format(time.RFC3339)
		case json.Unmarshal(value, &text) == nil:
			m.value = text
		case json.Unmarshal(value, &texts) == nil:
			m.value = cmp.Or(strings.Join(texts, ","), "none")
		default:
			m.value = string(value)
		}
		m.value = printable(m.value)
		list = append(list, m)
	}
	return list
}

// inWords is the name of a member as people write it: team id for teamId.
func inWords(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// printable takes out what would steer a terminal: names are chosen by others.
// What joins letters and emoji, or keeps letters apart, stays.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.Is(unicode.Join_Control, r) {
			return r
		}
		return utf8.RuneError
	}, text)
}
