// Command runtime-go is a minimal call runtime in its own module. It echoes chat
// messages until the browser sends "goodbye".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"sync"

	"telapi/internal/calls"
	"telapi/callruntime/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := calls.Locate(os.Getenv("REDIS_URL"), os.Getenv("DATA_DIR"))
	if err != nil {
		log.Fatal(err)
	}
	runtime, err := calls.New(calls.Options{Store: store, Name: "runtime-go"})
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		call, err := runtime.Accept(ctx, nil)
		if err != nil {
			log.Print(err)
			return
		}
		calls.Go(func() {
			if err := serve(ctx, call); err != nil {
				log.Printf("session %s: %v", call.ID, err)
			}
		})
	}
}

// serve echoes the chat messages of one session until it ends.
func serve(ctx context.Context, call *calls.Channel) error {
	for {
		d, err := call.Receive(ctx)
		if errors.Is(err, calls.ErrEnded) {
			return nil
		}
		if err != nil {
			return err
		}
		if m := d.Entry.Message; d.Entry.Kind == wire.KindFrame && m.Type == wire.TypeChat {
			err = call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: m.Chat})
			var chat struct{ Text string }
			if json.Unmarshal(m.Chat, &chat) == nil && chat.Text == "goodbye" {
				err = errors.Join(err, call.End(ctx, "goodbye"))
			}
		}
		if err == nil && d.Position != "" { // audio frames have no position
			err = call.Commit(ctx, d.Position)
		}
		if err != nil {
			return err
		}
	}
}
