package background

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"telapi/test/testkit"
)

func TestWorkOutlivesItsCallerAndEndsWithTheGroup(t *testing.T) {
	type key struct{}
	g := NewGroup()
	caller, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	started, ended := make(chan error), make(chan error, 1)
	err := g.Go(caller, func(ctx context.Context) {
		<-caller.Done()
		if ctx.Value(key{}) != "value" {
			t.Error("the caller's values are missing")
		}
		started <- ctx.Err()
		<-ctx.Done()
		ended <- ctx.Err()
	})
	testkit.Must(t, err)
	cancel()
	if err := <-started; err != nil {
		t.Errorf("after the caller was canceled: context error %v, want none", err)
	}
	g.Close()
	select {
	case <-ended:
	default:
		t.Error("Close did not wait for the work")
	}
	testkit.WantError(t, "after Close", g.Go(t.Context(), func(context.Context) { t.Error("started in a closed group") }), ErrClosed)
}

func TestBackoffDoublesUpToMax(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := b.Next(); got < want/2 || got > want*3/2 {
			t.Errorf("delay %v, want between %v and %v", got, want/2, want*3/2)
		}
	}
	b.Reset()
	if got := b.Next(); got > 150*time.Millisecond {
		t.Errorf("delay %v after Reset, want at most 150ms", got)
	}
}

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
