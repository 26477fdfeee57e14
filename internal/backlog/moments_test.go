package backlog

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"
)

func TestTheLatestMomentIsWritten(t *testing.T) {
	var m LastSeen
	early := time.Unix(1_800_000_000, 0)
	late := early.Add(time.Minute)
	m.Note("a", late)
	m.Note("a", early) // its clock went back
	m.Note("b", late)
	away := errors.New("away")
	err := m.Flush(t.Context(), func(context.Context, map[string]time.Time) error {
		m.Note("b", early)
		m.Note("c", early)
		return away
	})
	if !errors.Is(err, away) {
		t.Fatal(err)
	}
	var written []map[string]time.Time
	for range 2 {
		if err := m.Flush(t.Context(), func(_ context.Context, batch map[string]time.Time) error {
			written = append(written, batch)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]time.Time{"a": late, "b": late, "c": early}; len(written) != 1 || !maps.Equal(written[0], want) {
		t.Errorf("written: %v, want %v once", written, want)
	}
}
