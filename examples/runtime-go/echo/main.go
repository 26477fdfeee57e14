// Command echo is a call runtime that repeats what browsers write.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func main() {
	url, key := os.Getenv("TELAPI_URL"), os.Getenv("TELAPI_KEY")
	if url == "" || key == "" {
		log.Fatal("Set TELAPI_URL, such as http://localhost:3001, and TELAPI_KEY, an API key with the scope RUN_CALLS.")
	}
	runtime, err := callruntime.New(callruntime.Options{URL: url, Key: key, Name: "echo"})
	if err == nil {
		log.Print("connecting to ", url)
	}
	for ctx := context.Background(); err == nil; {
		var call *callruntime.Channel
		if call, err = runtime.Accept(ctx, wire.Accept{}); err == nil {
			go func() {
				for d, err := call.Receive(ctx); err == nil || errors.Is(err, callruntime.ErrLost); d, err = call.Receive(ctx) { // d is empty after ErrLost
					if m := d.Entry.Message; m != nil && m.Type == wire.TypeChat {
						if call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: m.Chat}) != nil {
							continue // not committed: Receive returns the reason
						}
					}
					_ = call.Commit(ctx, d.Position)
				}
			}()
		}
	}
	log.Fatal(err)
}
