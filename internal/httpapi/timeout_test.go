package httpapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkEndsInTimeWhetherSomebodyWaitsOrNot(t *testing.T) {
	type key struct{}
	for name, c := range map[string]struct {
		happens func(w *timeoutContext, leave context.CancelFunc)
		want    error
	}{
		"over its time":   {func(*timeoutContext, context.CancelFunc) { time.Sleep(handlerTimeout) }, context.DeadlineExceeded},
		"the client left": {func(_ *timeoutContext, leave context.CancelFunc) { leave() }, context.Canceled},
	} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				request, leave := context.WithCancel(context.WithValue(t.Context(), key{}, name))
				defer leave()
				w := withTimeout(request)
				defer w.cancel()
				if w.Err() != nil {
					t.Errorf("%s: ended at once: %v", name, w.Err())
				}
				var child context.Context = w
				if waits {
					var cancel context.CancelFunc
					child, cancel = context.WithCancel(w)
					defer cancel()
				}
				c.happens(w, leave)
				synctest.Wait()
				if !errors.Is(w.Err(), c.want) || !errors.Is(child.Err(), c.want) || child.Value(key{}) != name {
					t.Errorf("%s, waited for %v: ended with %v and %v", name, waits, w.Err(), child.Err())
				}
				<-w.Done()
			})
		}
	}
}

func TestWorkThatIsDoneEndsForThoseWhoWait(t *testing.T) {
	w := withTimeout(t.Context())
	child, cancel := context.WithCancel(w)
	defer cancel()
	w.cancel()
	<-child.Done()
	if !errors.Is(w.Err(), context.Canceled) {
		t.Errorf("ended with %v", w.Err())
	}
}
