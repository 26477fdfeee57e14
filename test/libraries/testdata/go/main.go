// Command go is the runtime of the test that all libraries share. It obeys chat messages
// and prints what it receives.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// capacity is the number of sessions at a time.
const capacity = 8

func main() {
	resume, _ := time.ParseDuration(os.Getenv("TELAPI_RESUME_MS") + "ms") // optional
	runtime, err := callruntime.New(callruntime.Options{URL: os.Getenv("TELAPI_URL"), Key: os.Getenv("TELAPI_KEY"), Name: os.Getenv("TELAPI_NAME"), Resume: resume})
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var workers sync.WaitGroup
	for range capacity {
		workers.Go(func() {
			for ctx.Err() == nil {
				call, err := runtime.Accept(ctx, wire.Accept{})
				if err != nil && ctx.Err() == nil {
					log.Fatal(err)
				}
				if err == nil {
					err = serve(ctx, call)
				}
				if err != nil && ctx.Err() == nil {
					log.Printf("session %s: %v", call.ID, err)
				}
			}
		})
	}
	workers.Wait()
}

func serve(ctx context.Context, call *callruntime.Channel) error {
	defer call.Close(context.WithoutCancel(ctx))
	for {
		d, err := call.Receive(ctx)
		switch {
		case errors.Is(err, callruntime.ErrEnded):
			return nil
		case errors.Is(err, callruntime.ErrLost):
			fmt.Println("lost", call.ID)
			continue
		case err != nil:
			return err
		}
		var chat struct{ Text string }
		if d.Entry.Message != nil {
			_ = json.Unmarshal(d.Entry.Message.Chat, &chat) // other messages have no text
		}
		fmt.Println("entry", call.ID, d.Position, d.Entry.Kind, chat.Text)
		// An entry that arrives again after a crash has the same effect, once.
		id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(call.ID+" "+d.Position)).String()
		if err := handle(ctx, call, d.Entry, chat.Text, id); err != nil {
			return err
		}
		if err := call.Commit(ctx, d.Position); err != nil {
			return err
		}
	}
}

func handle(ctx context.Context, call *callruntime.Channel, e wire.Entry, text, id string) error {
	argument, isSay := strings.CutPrefix(text, "say ")
	switch {
	case e.Kind == wire.KindToolResult:
		return say(ctx, call, id, "result "+string(e.Result))
	case e.Kind == wire.KindTimeout:
		return say(ctx, call, id, "timeout")
	case e.Kind != wire.KindFrame || e.Message.Type != wire.TypeChat:
		return nil
	case isSay:
		return say(ctx, call, id, argument)
	case text == "ask":
		return ask(ctx, call, id, time.Minute)
	case text == "short":
		return ask(ctx, call, id, 300*time.Millisecond)
	case text == "end":
		return call.End(ctx, "bye")
	default:
		return say(ctx, call, id, text)
	}
}

func ask(ctx context.Context, call *callruntime.Channel, id string, ttl time.Duration) error {
	item, err := call.Await(ctx, wire.Await{Kind: wire.ToolItem, WorkItemID: id, TTLMs: ttl.Milliseconds()})
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]string{"workItemId": item.WorkItemID, "token": item.Token, "url": item.URL})
	if err != nil {
		return err
	}
	return say(ctx, call, id, string(text))
}

func say(ctx context.Context, call *callruntime.Channel, id, text string) error {
	chat, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		return err
	}
	return call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, MessageID: id, Chat: chat})
}
