// Package conformance holds the contracts of store interfaces as tests. Real
// stores and the fakes of unit tests pass the same tests.
package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/ratelimit"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

// Counter tests an empty ratelimit.Counter. prefix makes keys unique.
func Counter(t *testing.T, c ratelimit.Counter, prefix string) {
	lease := func(key string, want, limit int64, window time.Duration) ratelimit.Grant {
		t.Helper()
		g, err := c.Grant(t.Context(), prefix+key, want, limit, window)
		testkit.Must(t, err)
		return g
	}
	for i, want := range []ratelimit.Grant{{Permits: 4, Remaining: 6}, {Permits: 4, Remaining: 2}, {Permits: 2}, {}} {
		g := lease("a", 4, 10, time.Hour)
		if g.Permits != want.Permits || g.Remaining != want.Remaining || g.Reset <= 0 || g.Reset > time.Hour {
			t.Errorf("lease %d: %+v, want %+v within an hour", i, g, want)
		}
	}
	if g := lease("a", 1, 9, time.Hour); g.Permits != 0 || g.Remaining != 0 {
		t.Errorf("after the limit was lowered: %+v, want no permits", g)
	}
	if g := lease("a", 5, 12, time.Hour); g.Permits != 2 || g.Remaining != 0 {
		t.Errorf("after the limit was raised: %+v, want 2 permits and 0 remaining", g)
	}
	if g := lease("b", 1, 1, time.Hour); g.Permits != 1 {
		t.Errorf("another key: %+v, want 1 permit", g)
	}
	if g := lease("b", 1, 1, 100*time.Millisecond); g.Permits != 0 || g.Reset > 100*time.Millisecond {
		t.Errorf("after the window was shortened: %+v, want no permits and a reset within 100ms", g)
	}
	testkit.Until(t, "a new window", func() bool { return lease("b", 1, 1, 100*time.Millisecond).Permits == 1 })
}

// LimitsStore tests an empty ratelimit.LimitsStore.
func LimitsStore(t *testing.T, s ratelimit.LimitsStore) {
	for _, step := range []struct {
		old, value string
		saved      bool
		want       string
	}{
		{"", "first", true, "first"},
		{"", "second", false, "first"},
		{"other", "second", false, "first"},
		{"first", "second", true, "second"},
	} {
		if saved, err := s.SaveLimits(t.Context(), []byte(step.old), []byte(step.value)); err != nil || saved != step.saved {
			t.Errorf("replace %q by %q: saved %v, %v; want %v", step.old, step.value, saved, err, step.saved)
		}
		if value, ok, err := s.Limits(t.Context()); err != nil || !ok || string(value) != step.want {
			t.Errorf("Limits returned %q, %v, %v; want %q", value, ok, err, step.want)
		}
	}
}

// Mirror tests an empty ratelimit.Mirror.
func Mirror(t *testing.T, m ratelimit.Mirror) {
	if value, ok, err := m.Setting(t.Context(), ratelimit.SettingName); len(value) > 0 || ok || err != nil {
		t.Errorf("Setting before SaveSetting returned %q, %v, %v; want none", value, ok, err)
	}
	for _, want := range []string{`{"tiers":{}}`, `{}`} {
		testkit.Must(t, m.SaveSetting(t.Context(), ratelimit.SettingName, []byte(want)))
		if value, ok, err := m.Setting(t.Context(), ratelimit.SettingName); string(value) != want || !ok || err != nil {
			t.Errorf("Setting returned %q, %v, %v; want %q", value, ok, err, want)
		}
	}
}

// ReportStream tests an empty speech.ReportStream. It must return unacknowledged entries again
// after timeOut was called, and not before.
func ReportStream(t *testing.T, s speech.ReportStream, timeOut func()) {
	ctx := t.Context()
	length := func(want int64) {
		t.Helper()
		if n, err := s.Len(ctx); err != nil || n != want {
			t.Errorf("Len returned %d, %v; want %d", n, err, want)
		}
	}
	read := func(limit int) (entries []speech.ReportEntry) {
		t.Helper()
		testkit.Until(t, "Read returns entries", func() bool {
			var err error
			if entries, err = s.Read(ctx, limit, 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			return len(entries) > 0
		})
		return entries
	}
	reports := func(entries []speech.ReportEntry) (all []string) {
		for _, e := range entries {
			all = append(all, string(e.Report))
		}
		return all
	}
	length(0)
	testkit.Must(t, s.Append(ctx, []byte("1"), []byte("2"), []byte("3")))
	first, rest := read(2), read(2)
	testkit.Equal(t, "read", fmt.Sprint(reports(first), reports(rest)), "[1 2] [3]")
	length(3)
	testkit.Must(t, s.Ack(ctx, first[:1]))
	testkit.Must(t, s.Reject(ctx, rest[0], "reason"))
	length(1)
	timeOut()
	if again := read(10); !slices.Equal(reports(again), []string{"2"}) || again[0].ID != first[1].ID {
		t.Errorf("read again: %v, want the unacknowledged entry", again)
	}
}

// ReportStore tests an empty speech.ReportStore.
func ReportStore(t *testing.T, s speech.ReportStore) {
	now := time.Now().Truncate(time.Hour)
	report := func(id string) wire.SpeechReport {
		return wire.SpeechReport{ID: id, TeamID: "tm_1", Characters: 1, At: now.UnixMilli()}
	}
	add := func(want int, at time.Time, ids ...string) {
		t.Helper()
		var reports []wire.SpeechReport
		for _, id := range ids {
			reports = append(reports, report(id))
		}
		if added, err := s.AddReports(t.Context(), reports, at); err != nil || added != want {
			t.Errorf("AddReports(%v) returned %d, %v; want %d", ids, added, err, want)
		}
	}
	add(0, now)
	add(2, now, "a", "b", "a")
	add(1, now.Add(time.Hour), "b", "c")
	testkit.Must(t, s.DeleteReports(t.Context(), now.Add(time.Minute)))
	add(2, now, "a", "b", "c")
}
