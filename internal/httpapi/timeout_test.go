package httpapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimeoutContextEndsWithAndWithoutTimer(t *testing.T) {
	type key struct{}
	for name, c := range map[string]struct {
		end  func(disconnect context.CancelFunc)
		want error
	}{
		"timed out":           {func(context.CancelFunc) { time.Sleep(handlerTimeout) }, context.DeadlineExceeded},
		"client disconnected": {func(disconnect context.CancelFunc) { disconnect() }, context.Canceled},
	} {
		for _, withTimer := range []bool{true, false} { // the timer starts when Done is called
			synctest.Test(t, func(t *testing.T) {
				request, disconnect := context.WithCancel(context.WithValue(t.Context(), key{}, name))
				defer disconnect()
				ctx := withTimeout(request)
				defer ctx.cancel()
				if ctx.Err() != nil {
					t.Errorf("%s: ended immediately: %v", name, ctx.Err())
				}
				var child context.Context = ctx
				if withTimer { // WithCancel calls Done
					var cancel context.CancelFunc
					child, cancel = context.WithCancel(ctx)
					defer cancel()
				}
				c.end(disconnect)
				synctest.Wait()
				if !errors.Is(ctx.Err(), c.want) || !errors.Is(child.Err(), c.want) || child.Value(key{}) != name {
					t.Errorf("%s, with timer %v: errors %v and %v, want %v; value %v, want %v",
						name, withTimer, ctx.Err(), child.Err(), c.want, child.Value(key{}), name)
				}
				<-ctx.Done()
			})
		}
	}
}

func TestCancelEndsChildrenOfTimeoutContext(t *testing.T) {
	ctx := withTimeout(t.Context())
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx.cancel()
	<-child.Done()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("error %v, want %v", ctx.Err(), context.Canceled)
	}
}
