package calls_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/redisstore"
	"telapi/test/embedded"
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
			runtime := startSession(t)
			c, err := runtime.Attach(ctx, calls.Claim{}, "s")
			testkit.Must(t, err)
			ready, result := make(chan struct{}), make(chan error)
			closeFunc, call := prepare(runtime, c, func() { close(ready) })
			go func() { result <- call() }()
			<-ready
			closeFunc()
			testkit.WantError(t, "the call", <-result, calls.ErrClosed)
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

// startSession returns a runtime and starts its store, with an unclaimed session whose browser
// has sent a frame.
func startSession(t *testing.T) *calls.Runtime {
	t.Helper()
	store := embedded.Open(t)
	channels := redisstore.NewChannels(store, wire.DefaultChannelLimits())
	_, err := channels.Attach(t.Context(), channel.AttachRequest{ChannelID: "s", ConnectionID: "c", Lease: time.Minute, Mode: "chat", Entry: []byte(`{"kind":"session","event":"connected"}`)})
	testkit.Must(t, err)
	_, _, err = channels.Append(t.Context(), channel.Owner{ChannelID: "s", ConnectionID: "c"}, []channel.Frame{{MessageID: "1", Entry: jsontext.Value(`{"kind":"frame","message":{"type":"chat","chat":{"text":"hello"}}}`)}})
	testkit.Must(t, err)
	option := store.ClientOption()
	option.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	runtime, err := calls.New(calls.Options{Store: option, Name: "node-1", Lease: time.Minute})
	testkit.Must(t, err)
	t.Cleanup(runtime.Close)
	return runtime
}

func TestLoggedWorkItemOmitsCredential(t *testing.T) {
	var out strings.Builder
	item := calls.WorkItem{ID: "item-1", Kind: wire.LLMItem, Token: "cbt_secret", Path: "/p", ExpiresAt: time.Now()}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("awaited", "item", item)
	}
	if got := out.String(); strings.Count(got, item.ID) != 2 || strings.Contains(got, "secret") {
		t.Errorf("logged %s, want the ID twice and no token", got)
	}
}

// The service would reject the callbacks.
func TestTokenWithOtherWorkItemIDIsInvalid(t *testing.T) {
	token := calls.NewToken() + ".item-2"
	if _, err := new(calls.Channel).Await(t.Context(), calls.AwaitOptions{WorkItemID: "item-1", Token: token}); err == nil ||
		!strings.Contains(err.Error(), `"item-1"`) || strings.Contains(err.Error(), token) {
		t.Errorf("got %v, want an error with the ID of the work item and without the token", err)
	}
}

func TestNewRequiresName(t *testing.T) {
	if _, err := calls.New(calls.Options{}); err == nil {
		t.Error("New accepted options without a name")
	}
}
