package callruntime_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// A runtime that echoes what browsers write.
func Example() {
	ctx := context.Background()
	runtime, err := callruntime.New(callruntime.Options{URL: "https://api.example.com", Key: "tk_…", Name: "echo-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()
	for {
		call, err := runtime.Accept(ctx, wire.Accept{})
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			for {
				d, err := call.Receive(ctx)
				switch {
				case errors.Is(err, callruntime.ErrEnded):
					return
				case errors.Is(err, callruntime.ErrLost): // entries that were not committed arrive again
					continue
				case err != nil:
					log.Printf("session %s: %v", call.ID, err)
					return
				}
				if m := d.Entry.Message; m != nil && m.Type == wire.TypeChat {
					_ = call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: m.Chat})
				}
				_ = call.Commit(ctx, d.Position)
			}
		}()
	}
}

// A runtime awaits a result before it asks a provider for it.
func ExampleChannel_Await() {
	var ctx context.Context
	var call *callruntime.Channel // from Accept

	item, err := call.Await(ctx, wire.Await{Kind: wire.ToolItem})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the tool posts its result to %s, with the header token: %s\n", item.URL, item.Token)

	d, err := call.Receive(ctx) // the next entry; perhaps another one
	switch {
	case err != nil:
		log.Fatal(err)
	case d.Entry.Kind == wire.KindToolResult:
		fmt.Printf("result of %s: %s\n", d.Entry.WorkItemID, d.Entry.Result)
	case d.Entry.Kind == wire.KindTimeout:
		fmt.Printf("no result of %s in time\n", d.Entry.WorkItemID)
	}
}
