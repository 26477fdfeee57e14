package calls

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// There is no notice of a deadline that is later than the next look.
func TestDeadlinesAreLookedForWithinTouchWithin(t *testing.T) {
	c := &Channel{runtime: &Runtime{opts: Options{Lease: time.Hour}}}
	if in := time.Until(*c.dueIn(time.Hour.Milliseconds())); in > 20*time.Second {
		t.Errorf("the next look is in %v, want 20s", in)
	}
}

// A notice that arrives while Poll reads makes the next Poll read again, also before the
// first entry is known.
func TestNoticeDuringReadIsNotForgotten(t *testing.T) {
	for name, notify := range map[string]func(subscriber){
		"subscription": subscriber.Up,
		"message":      func(s subscriber) { s.Message("M1-1 {}") },
		"entry":        func(s subscriber) { s.Message("E0-0 1-1 ") },
	} {
		c := &Channel{watcher: &inbox{changed: make(chan struct{}, 1)}, runtime: &Runtime{opts: Options{Lease: time.Minute}}}
		known := c.newestEntry.Load() // as Poll does before it reads
		notify(subscriber{c})
		if c.newestEntry.CompareAndSwap(known, new("")) {
			t.Errorf("%s: Poll relies on a read from before the notice", name)
		}
	}
}

func TestKeptEntriesFollowPosition(t *testing.T) {
	first, second := keptNotice{"4-1", "5-2", `{"a":5}`}, keptNotice{"5-2", "7-3", "{\"a\":6}\n{\"a\":7}"}
	for name, test := range map[string]struct {
		notices  []keptNotice
		position string
		want     string
	}{
		"none":                    {nil, "4-1", ""},
		"all":                     {[]keptNotice{first, second}, "4-1", `5-2 {"a":5} 6-3 {"a":6} 7-3 {"a":7}`},
		"other position":          {[]keptNotice{first, second}, "4-9", ""},
		"position in between":     {[]keptNotice{first, second}, "5-2", ""},
		"gap":                     {[]keptNotice{first, {"6-2", "7-3", "{}"}}, "6-2", "7-3 {}"},
		"position before the gap": {[]keptNotice{first, {"6-2", "7-3", "{}"}}, "4-1", ""},
		"rewritten":               {[]keptNotice{first, {"4-1", "5-9", "{}"}}, "4-1", "5-9 {}"},
		"without entries":         {[]keptNotice{first, {"5-2", "6-3", ""}}, "4-1", ""},
		"line feed":               {[]keptNotice{{"4-1", "5-2", "{\n}"}, {"5-2", "6-3", "{}"}}, "4-1", ""},
		"line feed later":         {[]keptNotice{first, {"5-2", "6-3", "{\n}"}, {"6-3", "7-3", "{}"}}, "4-1", `5-2 {"a":5}`},
		"too many bytes":          {[]keptNotice{first, {"5-2", "6-3", strings.Repeat("x", maxKept)}}, "4-1", ""},
		"after too many bytes":    {[]keptNotice{first, {"5-2", "6-3", strings.Repeat("x", maxKept)}, {"6-3", "7-3", "{}"}}, "6-3", "7-3 {}"},
	} {
		var k kept
		for _, n := range test.notices {
			k.add(n)
		}
		var got []string
		for _, d := range k.take(test.position) {
			got = append(got, d.Position, string(d.JSON))
		}
		if !slices.Equal(got, strings.Fields(test.want)) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		if k.list != nil || k.bytes != 0 {
			t.Errorf("%s: entries are kept after take", name)
		}
	}
}
