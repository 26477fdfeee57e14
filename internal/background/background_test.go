package background

import (
	"context"
	"errors"
	"testing"

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
	if err := g.Go(t.Context(), func(context.Context) { t.Error("started in a closed group") }); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}
