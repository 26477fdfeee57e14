package background

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"
)

func TestFlushWritesLatestTimesOnce(t *testing.T) {
	var seen LastSeen
	early := time.Unix(1_800_000_000, 0)
	late := early.Add(time.Minute)
	seen.Record("a", late)
	seen.Record("a", early)
	seen.Record("b", late)
	unavailable := errors.New("unavailable")
	err := seen.Flush(t.Context(), func(context.Context, map[string]time.Time) error {
		seen.Record("b", early)
		seen.Record("c", early)
		return unavailable
	})
	if !errors.Is(err, unavailable) {
		t.Fatal(err)
	}
	var written []map[string]time.Time
	for range 2 {
		if err := seen.Flush(t.Context(), func(_ context.Context, batch map[string]time.Time) error {
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
