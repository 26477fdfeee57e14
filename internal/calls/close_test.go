package calls_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	gort "runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// A closed client can reach a cluster for a while. A runtime that kept renewing
// its claims would keep its successor from claiming the channels.
func TestCloseStopsRenewal(t *testing.T) {
	dataDir, stop := startSession("hello")
	defer stop()
	runtime := connect(t, dataDir)
	const renewal = "calls.(*Channel).keepClaim("
	if _, err := runtime.Accept(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for !runs(renewal) { // until the goroutine has started
		if t.Context().Err() != nil {
			t.Fatal("no goroutine renews the claim, or it has another name")
		}
		gort.Gosched()
	}
	runtime.Close()
	if runs(renewal) {
		t.Error("a closed runtime renews its claim")
	}
}

// runs reports whether a goroutine runs the function.
func runs(function string) bool {
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2) // a buffer does not fail
	return bytes.Contains(stacks.Bytes(), []byte(function))
}

func TestWaitingCallsReturnErrClosed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	accept := func(r *calls.Runtime, want func(wire.Offer) bool) error {
		_, err := r.Accept(ctx, want)
		return err
	}
	// Each case returns a call that has to fail with ErrClosed, and a function that
	// closes the channel or the runtime. The case calls ready when the call waits.
	for name, prepare := range map[string]func(r *calls.Runtime, c *calls.Channel, ready func()) (closeFunc func(), call func() error){
		"Accept": func(r *calls.Runtime, _ *calls.Channel, ready func()) (func(), func() error) {
			refuse := sync.OnceFunc(ready)
			return r.Close, func() error { return accept(r, func(wire.Offer) bool { refuse(); return false }) }
		},
		"Accept after Close": func(r *calls.Runtime, _ *calls.Channel, ready func()) (func(), func() error) {
			r.Close()
			ready()
			return func() {}, func() error { return accept(r, nil) }
		},
		"Receive": func(r *calls.Runtime, c *calls.Channel, ready func()) (func(), func() error) {
			return r.Close, func() error { return receiveAll(ctx, c, ready) }
		},
		"Receive on a closed channel": func(_ *calls.Runtime, c *calls.Channel, ready func()) (func(), func() error) {
			return func() { _ = c.Close(ctx) }, func() error { return receiveAll(ctx, c, ready) }
		},
		"Send after Close": func(r *calls.Runtime, c *calls.Channel, ready func()) (func(), func() error) {
			r.Close()
			ready()
			return func() {}, func() error {
				return c.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{}`)})
			}
		},
		"Receive of an observer": func(r *calls.Runtime, _ *calls.Channel, ready func()) (func(), func() error) {
			observer := r.Observe("s", "")
			return func() { _ = observer.Close(ctx) }, func() error { return receiveAll(ctx, observer, ready) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir, stop := startSession("hello")
			defer stop()
			runtime := connect(t, dataDir)
			defer runtime.Close()
			channel, err := runtime.Attach(ctx, "s")
			if err != nil {
				t.Fatal(err)
			}
			ready, result := make(chan struct{}), make(chan error)
			closeFunc, call := prepare(runtime, channel, func() { close(ready) })
			go func() { result <- call() }()
			<-ready
			closeFunc()
			if err := <-result; !errors.Is(err, calls.ErrClosed) {
				t.Errorf("the call returned %v, want ErrClosed", err)
			}
		})
	}
}

// A second call of Receive waits for the first one, but not longer than its own
// context.
func TestConcurrentReceiveHonoursContext(t *testing.T) {
	dataDir, stop := startSession("hello")
	defer stop()
	runtime := connect(t, dataDir)
	channel, err := runtime.Attach(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	ready, first := make(chan struct{}), make(chan error)
	go func() { first <- receiveAll(t.Context(), channel, func() { close(ready) }) }()
	<-ready
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error)
	go func() {
		_, err := channel.Receive(ctx)
		second <- err
	}()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the second Receive returned %v, want context.Canceled", err)
	}
	runtime.Close()
	if err := <-first; !errors.Is(err, calls.ErrClosed) {
		t.Errorf("the first Receive returned %v, want ErrClosed", err)
	}
}

// While the store is unavailable, messages are retried. Close ends the goroutine
// that sends them, and every message has an outcome.
func TestCloseEndsSending(t *testing.T) {
	dataDir, stop := startSession()
	runtime := connect(t, dataDir)
	channel, err := runtime.Attach(t.Context(), "s")
	stop()
	if err != nil {
		t.Fatal(err)
	}
	var waits []func() error
	for range 200 {
		waits = append(waits, channel.SendAsync(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{}`)}))
	}
	runtime.Close()
	if runs("calls.(*outbox).send(") {
		t.Error("a goroutine of a closed runtime sends messages")
	}
	for _, wait := range waits {
		if err := wait(); !errors.Is(err, calls.ErrClosed) {
			t.Errorf("wait returned %v, want ErrClosed", err)
		}
	}
}

// receiveAll receives until an error occurs and calls ready after the first frame.
func receiveAll(ctx context.Context, c *calls.Channel, ready func()) error {
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			return err
		}
		if d.Entry.Kind == wire.KindFrame {
			ready()
		}
	}
}

// Close does not race with calls of Open that start goroutines.
func TestCloseDuringOpen(t *testing.T) {
	dataDir, stop := startSession()
	defer stop()
	for i := range 50 {
		runtime := connect(t, dataDir)
		var openers sync.WaitGroup
		opened := make(chan struct{}, 1)
		for opener := range 4 {
			openers.Go(func() {
				for n, err := 0, error(nil); err == nil; n++ {
					_, err = runtime.Open(t.Context(), calls.OpenOptions{ChannelID: fmt.Sprint(i, "-", opener, "-", n)})
					select {
					case opened <- struct{}{}:
					default:
					}
				}
			})
		}
		<-opened
		runtime.Close()
		openers.Wait()
	}
}

func connect(t *testing.T, dataDir string) *calls.Runtime {
	t.Helper()
	store, err := calls.Locate("", dataDir)
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := calls.New(calls.Options{Store: store, Name: "node-1", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return runtime
}
