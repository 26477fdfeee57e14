package calls_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func TestWaitingCallsReturnErrClosed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Each case returns a call that has to fail with ErrClosed, and a function that
	// closes the channel or the runtime. The case calls ready when the call waits.
	for name, prepare := range map[string]func(r *calls.Runtime, c *calls.Channel, ready func()) (closeFunc func(), call func() error){
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

func connect(t *testing.T, dataDir string) *calls.Runtime {
	t.Helper()
	store, _, err := kv.FindEmbedded(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	option := kv.ClientOption(store)
	option.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	runtime, err := calls.New(calls.Options{Store: option, Name: "node-1", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return runtime
}
