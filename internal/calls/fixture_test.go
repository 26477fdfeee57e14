package calls_test

import (
	"context"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/redisstore"
)

// startSession starts an embedded store with an unclaimed session whose browser
// has sent the given texts.
func startSession(texts ...string) (dataDir string, stop func()) {
	dataDir, _, stop = startChannels(texts...)
	return dataDir, stop
}

// startChannels is startSession for tests that send further frames.
func startChannels(texts ...string) (dataDir string, channels *redisstore.Channels, stop func()) {
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	dataDir, err := os.MkdirTemp("", "calls")
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
