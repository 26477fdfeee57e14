package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/internal/fault"
)

func TestTextIsBlankedWhereverItStands(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", `{"text":"hello"}`, `{"text":"[redacted]"}`},
		{"what says what it is", `{"type":"t","name":"n","action":"a","id":"i","timestamp":"s"}`, `{"type":"t","name":"n","action":"a","id":"i","timestamp":"s"}`},
		{"numbers, booleans and null", `{"n":1.50,"b":true,"z":null,"type":7}`, `{"n":1.50,"b":true,"z":null,"type":7}`},
		{"nested transcript", `{"type":"voice","payload":{"transcript":{"final":"my card is 4111","words":["my","card"]}}}`,
			`{"type":"voice","payload":{"transcript":{"final":"[redacted]","words":["[redacted]","[redacted]"]}}}`},
		{"exceptions deeper down", `{"a":{"b":[{"type":"click","id":"x","value":"secret"}]}}`, `{"a":{"b":[{"type":"click","id":"x","value":"[redacted]"}]}}`},
		{"objects under an exception", `{"action":{"transcript":"secret","type":"say"}}`, `{"action":{"transcript":"[redacted]","type":"say"}}`},
		{"lists under an exception", `{"name":["secret",["secret"],{"id":"i"}]}`, `{"name":["[redacted]",["[redacted]"],{"id":"i"}]}`},
		{"names like the exceptions", `{"Type":"secret","type ":"secret","names":"secret","user_id":"secret","actionText":"secret"}`,
			`{"Type":"[redacted]","type ":"[redacted]","names":"[redacted]","user_id":"[redacted]","actionText":"[redacted]"}`},
		{"an exception in other letters", `{"\u0074ype":"t"}`, `{"\u0074ype":"t"}`},
		{"after an exception", `{"id":{},"x":"secret"}`, `{"id":{},"x":"[redacted]"}`},
		{"after an empty list", `{"id":[],"x":["secret"]}`, `{"id":[],"x":["[redacted]"]}`},
		{"an exception as a value", `{"x":"type","y":"secret"}`, `{"x":"[redacted]","y":"[redacted]"}`},
		{"a list of pairs", `{"x":["type","secret"]}`, `{"x":["[redacted]","[redacted]"]}`},
		{"empty text", `{"x":""}`, `{"x":"[redacted]"}`},
		{"white space", "{ \"x\" : \"secret\" ,\n \"type\":\"t\" }", `{"x":"[redacted]","type":"t"}`},
		{"empty", `{}`, `{}`},
		{"line break in a kept text", `{"type":"a\nb"}`, `{"type":"a\nb"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := blank([]byte(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{``, ` `, `{`, `{"a":1}{"b":"secret"}`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `nope`} {
		if got, err := blank([]byte(bad)); err == nil {
			t.Errorf("%q was taken, as %s", bad, got)
		}
	}
}

// leaves lists the texts of a value that are not the value of a readable member.
func leaves(v any, member string) (found []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			found = append(found, leaves(child, name)...)
		}
	case []any:
		for _, child := range v {
			found = append(found, leaves(child, "")...)
		}
	case string:
		if !readable[member] {
			found = append(found, v)
		}
	}
	return found
}

func FuzzBlank(f *testing.F) {
	for _, seed := range []string{`{"type":"t","x":{"y":["z",1,null,{"id":"i"}]}}`, `{"name":{"name":["name"]}}`, `"x"`, `[[]]`, `{"":""}`, `{"a":1e999}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := blank(value)
		if (err == nil) != jsontext.Value(value).IsValid() {
			t.Fatalf("%q: %v", value, err)
		}
		if err != nil {
			return
		}
		var in, out any
		if json.Unmarshal(value, &in) != nil || json.Unmarshal(got, &out) != nil {
			return // a number no float can hold
		}
		for _, text := range leaves(out, "") {
			if text != "[redacted]" {
				t.Fatalf("%s still says %q", got, text)
			}
		}
		if len(leaves(in, "")) != len(leaves(out, "")) {
			t.Fatalf("%s became %s", value, got)
		}
		if again, err := blank(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("blanking %s again gave %s, %v", got, again, err)
		}
	})
}

// shelf keeps actions in memory.
type shelf struct {
	mu     sync.Mutex
	kept   map[string]string
	away   error
	refuse string // an action with this text is refused, and its batch with it
	calls  int
}

func (s *shelf) AddBrowserActions(_ context.Context, actions []Action) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.away != nil {
		return s.away
	}
	if s.refuse != "" && slices.ContainsFunc(actions, func(a Action) bool { return strings.Contains(string(a.JSON), s.refuse) }) {
		return errors.New("refused")
	}
	for _, a := range actions {
		if _, there := s.kept[a.SessionID+a.MessageID]; !there {
			s.kept[a.SessionID+a.MessageID] = string(a.JSON)
		}
	}
	return nil
}

func (s *shelf) set(change func(*shelf)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func runActions(t *testing.T, s *shelf, keepText bool) (a *ActionQueue, stop func()) {
	t.Helper()
	a = NewActions(s, keepText, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	return a, func() { cancel(); running.Wait() }
}

func dropped(a *ActionQueue, reason string) float64 {
	var m dto.Metric
	if err := a.dropped.WithLabelValues(reason).Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

func TestActionsAreKeptBlankUnlessPersonalDataIsAllowed(t *testing.T) {
	for keepText, want := range map[bool]string{false: `{"type":"say","text":"[redacted]"}`, true: `{"type":"say","text":"secret"}`} {
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{kept: map[string]string{}}
			a, stop := runActions(t, s, keepText)
			frame := []byte(`{"type":"say","text":"secret"}`)
			a.AddAction("s", "m", start, frame)
			copy(frame, "XXXXXXXXXXXXXXXX") // the caller's buffer is used again
			a.AddAction("s", "m", start, []byte(`{"type":"repeated"}`))
			synctest.Wait()
			if s.kept["sm"] != want || len(s.kept) != 1 {
				t.Errorf("keepText %v: kept %v", keepText, s.kept)
			}
			stop()
		})
	}
}

func TestActionsAreWrittenWhenTheDatabaseIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{kept: map[string]string{}, away: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, false)
		const n = 3*actionBatch + 1
		for i := range n {
			a.AddAction("s", fmt.Sprint(i), start, []byte(`{}`))
		}
		time.Sleep(time.Minute)
		s.set(func(s *shelf) { s.away = nil })
		time.Sleep(time.Minute)
		stop()
		if len(s.kept) != n || s.calls > 100 {
			t.Errorf("%d of %d kept in %d calls", len(s.kept), n, s.calls)
		}
	})
}

func TestQueueIsBoundedAndLossIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{kept: map[string]string{}, away: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, true)
		large := []byte(`{"x":"` + strings.Repeat("x", 60<<10) + `"}`)
		for i := range 200 {
			a.AddAction("large", fmt.Sprint(i), start, large)
		}
		if fit := float64(actionRoom / len(large)); dropped(a, "full") != 200-fit {
			t.Errorf("%v were dropped, want %v", dropped(a, "full"), 200-fit)
		}
		s.set(func(s *shelf) { s.away = nil })
		time.Sleep(time.Minute)
		s.set(func(s *shelf) { s.away = fault.Unavailable("The database", nil) })
		before, maxActions := dropped(a, "full"), actionRoom/minActionBytes
		for i := range maxActions + 5 {
			a.AddAction("small", fmt.Sprint(i), start, []byte(`{}`))
		}
		if got := dropped(a, "full") - before; got != 5 {
			t.Errorf("%v were dropped, want 5", got)
		}
		stop() // the database stays away
		if dropped(a, "shutdown") != float64(maxActions) {
			t.Errorf("%v were given up at the end", dropped(a, "shutdown"))
		}
	})
}

func TestRefusedActionDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{kept: map[string]string{}, refuse: "poison"}
		a, stop := runActions(t, s, true)
		for i := range 10 {
			a.AddAction("s", fmt.Sprint(i), start, fmt.Appendf(nil, `{"x":%q}`, map[bool]string{true: "poison", false: "fine"}[i == 3]))
		}
		a.AddAction("s", "last", start, []byte(`{}`))
		time.Sleep(time.Second)
		stop()
		if len(s.kept) != 10 || dropped(a, "refused") != 1 {
			t.Errorf("kept %d, refused %v", len(s.kept), dropped(a, "refused"))
		}
	})
}

func TestMalformedActionIsDropped(t *testing.T) {
	a := NewActions(&shelf{}, false, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a.AddAction("s", "m", start, []byte(`{"x":"sec`))
	if dropped(a, "malformed") != 1 {
		t.Error("it was queued")
	}
}

func TestWhatIsQueuedAtTheEndIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{kept: map[string]string{}, away: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, false)
		a.AddAction("s", "m", start, []byte(`{}`))
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			s.set(func(s *shelf) { s.away = nil })
		}()
		stop()
		if len(s.kept) != 1 || dropped(a, "shutdown") != 0 {
			t.Errorf("kept %v", s.kept)
		}
	})
}
