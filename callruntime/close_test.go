package callruntime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// A client that is closed may still reach a cluster for a while: a runtime that
// went on renewing its claims would keep them from its successor.
func TestClosedRuntimeHoldsOnToNothing(t *testing.T) {
	dataDir, stop := browserSays("hello")
	defer stop()
	runtime := join(t, dataDir)
	if _, err := runtime.Accept(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if !renewing(t) {
		t.Error("nothing renews the claim, or it goes by another name")
	}
	runtime.Close()
	if renewing(t) {
		t.Error("it renews a claim after its end")
	}
}

func renewing(t *testing.T) bool {
	t.Helper()
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(stacks.Bytes(), []byte("callruntime.(*Channel).renew("))
}

func TestWhoeverWaitsIsToldOfTheClosing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	accept := func(r *callruntime.Runtime, want func(wire.Offer) bool) error {
		_, err := r.Accept(ctx, want)
		return err
	}
	for name, wait := range map[string]func(r *callruntime.Runtime, c *callruntime.Channel, waits func()) (end func(), told func() error){
		"for a session": func(r *callruntime.Runtime, _ *callruntime.Channel, waits func()) (func(), func() error) {
			refuse := sync.OnceFunc(waits)
			return r.Close, func() error { return accept(r, func(wire.Offer) bool { refuse(); return false }) }
		},
		"for a session after it": func(r *callruntime.Runtime, _ *callruntime.Channel, waits func()) (func(), func() error) {
			r.Close()
			waits()
			return func() {}, func() error { return accept(r, nil) }
		},
		"for what happens on a channel": func(r *callruntime.Runtime, c *callruntime.Channel, waits func()) (func(), func() error) {
			return r.Close, func() error { return receive(ctx, c, waits) }
		},
		"for what happens on a channel that is closed": func(_ *callruntime.Runtime, c *callruntime.Channel, waits func()) (func(), func() error) {
			return func() { _ = c.Close(ctx) }, func() error { return receive(ctx, c, waits) }
		},
		"to send, after it": func(r *callruntime.Runtime, c *callruntime.Channel, waits func()) (func(), func() error) {
			r.Close()
			waits()
			return func() {}, func() error {
				return c.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{}`)})
			}
		},
		"as an onlooker": func(r *callruntime.Runtime, _ *callruntime.Channel, waits func()) (func(), func() error) {
			onlooker := r.Observe("s", "")
			return func() { _ = onlooker.Close(ctx) }, func() error { return receive(ctx, onlooker, waits) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir, stop := browserSays("hello")
			defer stop()
			runtime := join(t, dataDir)
			defer runtime.Close()
			channel, err := runtime.Attach(ctx, "s")
			if err != nil {
				t.Fatal(err)
			}
			waiting, result := make(chan struct{}), make(chan error)
			end, told := wait(runtime, channel, func() { close(waiting) })
			go func() { result <- told() }()
			<-waiting
			end()
			if err := <-result; !errors.Is(err, callruntime.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// receive says when it has read what there is, and reads on.
func receive(ctx context.Context, c *callruntime.Channel, waits func()) error {
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			return err
		}
		if d.Entry.Kind == wire.KindFrame {
			waits()
		}
	}
}

func TestRuntimeCanBeClosedWhileItTakesChannels(t *testing.T) {
	dataDir, stop := browserSays()
	defer stop()
	for i := range 50 {
		runtime := join(t, dataDir)
		var takers sync.WaitGroup
		taken := make(chan struct{}, 1)
		for taker := range 4 {
			takers.Go(func() {
				for n, err := 0, error(nil); err == nil; n++ {
					_, err = runtime.Open(t.Context(), callruntime.OpenOptions{ChannelID: fmt.Sprint(i, "-", taker, "-", n)})
					select {
					case taken <- struct{}{}:
					default:
					}
				}
			})
		}
		<-taken
		runtime.Close()
		takers.Wait()
	}
}

func join(t *testing.T, dataDir string) *callruntime.Runtime {
	t.Helper()
	store, err := callruntime.Locate("", dataDir)
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := callruntime.New(callruntime.Options{Store: store, Name: "node-1", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return runtime
}
