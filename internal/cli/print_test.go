package cli

import (
	"bytes"
	"testing"
	"time"
)

type item struct {
	ID         string    `json:"id"`
	DailyQuota int64     `json:"dailyQuota"`
	Origins    []string  `json:"origins"`
	CreatedAt  time.Time `json:"createdAt"`
	Name       *string   `json:"name"`
}

var items = []item{
	{"a", 50000, []string{"x", "y"}, time.Date(2026, 11, 15, 11, 11, 37, 539_000_000, time.FixedZone("", 3600)), new("controls\x1b[31m\nthe terminal")},
	{"b", 7, nil, time.Time{}, nil},
}

// printed returns the output of print.
func printed(t *testing.T, asJSON bool, v any) string {
	t.Helper()
	var out bytes.Buffer
	c := &cli{Console: Console{Out: &out}, json: asJSON}
	if err := c.print(v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPrintFormatsText(t *testing.T) {
	for name, tt := range map[string]struct {
		value any
		want  string
	}{
		"one object": {items[0], "id           a\n" +
			"daily quota  50000\n" +
			"origins      x,y\n" +
			"created at   2026-11-15T10:11:37Z\n" +
			"name         controls�[31m�the terminal\n"},
		"zero-width joiners": {item{ID: "👩\u200d👧 می\u200cخواهم \u202eback"}, "id           👩\u200d👧 می\u200cخواهم �back\n" +
			"daily quota  0\norigins      none\ncreated at   0001-01-01T00:00:00Z\nname         \n"},
		"zero values": {items[1], "id           b\ndaily quota  7\norigins      none\ncreated at   0001-01-01T00:00:00Z\nname         \n"},
		"table":       {newTable(items, "id", "dailyQuota", "origins"), "ID  DAILY QUOTA  ORIGINS\na   50000        x,y\nb   7            none\n"},
		"empty table": {newTable([]item(nil), "id"), "none\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := printed(t, false, tt.value); got != tt.want {
				t.Errorf("printed\n%swant\n%s", got, tt.want)
			}
		})
	}
}

func TestPrintFormatsJSON(t *testing.T) {
	want := `{"id":"a","dailyQuota":50000,"origins":["x","y"],"createdAt":"2026-11-15T10:11:37.539Z","name":"controls\u001b[31m\nthe terminal"}` + "\n" +
		`{"id":"b","dailyQuota":7,"origins":[],"createdAt":"0001-01-01T00:00:00.000Z","name":null}` + "\n"
	if got := printed(t, true, newTable(items, "id")); got != want {
		t.Errorf("printed\n%swant\n%s", got, want)
	}
	if got := printed(t, true, newTable([]item(nil), "id")); got != "" {
		t.Errorf("empty table: printed %q, want nothing", got)
	}
}
