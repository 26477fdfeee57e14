package calls_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/redisstore"
)

// A runtime that echoes the browser until it receives "goodbye".
func Example() {
	dataDir, stop := startSession("hello", "goodbye")
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	store, err := calls.Locate("", dataDir) // or Locate(redisURL, "")
	if err != nil {
		log.Fatal(err)
	}
	runtime, err := calls.New(calls.Options{Store: store, Name: "node-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()

	call, err := runtime.Accept(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("session with mode", call.Mode)
	for {
		d, err := call.Receive(ctx)
		if errors.Is(err, calls.ErrEnded) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		switch d.Entry.Kind {
		case wire.KindSession:
			fmt.Println("browser", d.Entry.Event)
		case wire.KindFrame:
			text := d.Entry.Message.Chat
			fmt.Println("received", text)
			err = call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: text})
			if string(text) == `{"text":"goodbye"}` {
				err = errors.Join(err, call.End(ctx, "goodbye"))
			}
		case wire.KindChannelEnded:
			fmt.Println("ended:", d.Entry.Reason)
		}
		if err == nil && d.Position != "" { // audio frames have none
			err = call.Commit(ctx, d.Position)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// session with mode chat
	// browser connected
	// received {"text":"hello"}
	// received {"text":"goodbye"}
	// ended: goodbye
}

// startSession starts an embedded store with an unclaimed session whose browser
// has sent the given texts.
func startSession(texts ...string) (dataDir string, stop func()) {
	dataDir, _, stop = startChannels(texts...)
	return dataDir, stop
}

// startChannels is startSession for tests that send further frames.
func startChannels(texts ...string) (dataDir string, channels *redisstore.Channels, stop func()) {
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	dataDir, err := os.MkdirTemp("", "callruntime")
	must(err)
	engine, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: dataDir}, quiet)
	must(err)
	store := redisstore.Open(engine.Options(quiet))
	must(store.Connect(ctx))
	channels = redisstore.NewChannels(store, wire.DefaultChannelLimits())
	_, err = channels.Attach(ctx, channel.AttachRequest{ChannelID: "s", ConnectionID: "c", Lease: time.Minute, Mode: "chat", Entry: []byte(`{"kind":"session","event":"connected"}`)})
	must(err)
	sendChat(channels, texts...)
	must(channels.Offer(ctx, wire.Offer{SessionID: "s", Mode: "chat"}))
	return dataDir, channels, func() { store.Close(); engine.Close(); _ = os.RemoveAll(dataDir) }
}

func sendChat(channels *redisstore.Channels, texts ...string) {
	for _, text := range texts {
		_, _, err := channels.Append(context.Background(), channel.Owner{ChannelID: "s", ConnectionID: "c"}, []channel.Frame{{MessageID: text,
			Entry: jsontext.Value(`{"kind":"frame","message":{"type":"chat","chat":{"text":"` + text + `"}}}`)}})
		must(err)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
