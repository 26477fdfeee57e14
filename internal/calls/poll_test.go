package calls

import (
	"testing"
	"time"
)

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
