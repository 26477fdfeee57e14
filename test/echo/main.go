// Command echo is a call runtime for tests of other programs. It prints what it receives, and
// sends every frame back to its browser, except for commands in chat messages: those of package
// libraries, and
//
//	/mute       disables text chat
//	/count N    sends the numbers below N
//	/end        ends the channel
//
// Its settings are those of the programs of package libraries.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func main() {
	resume, _ := time.ParseDuration(os.Getenv("TELAPI_RESUME_MS") + "ms") // optional
	runtime, err := callruntime.New(callruntime.Options{URL: os.Getenv("TELAPI_URL"), Key: os.Getenv("TELAPI_KEY"), Name: cmp.Or(os.Getenv("TELAPI_NAME"), "echo"), Resume: resume})
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var calls sync.WaitGroup
	for ctx.Err() == nil {
		call, err := runtime.Accept(ctx, wire.Accept{})
		switch {
		case err == nil:
			calls.Go(func() {
				if err := serve(ctx, call); err != nil && ctx.Err() == nil {
					log.Printf("session %s: %v", call.ID, err)
				}
			})
		case ctx.Err() == nil:
			log.Fatal(err)
		}
	}
	calls.Wait()
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
		case err == nil && d.Position == "": // not stored
			err = call.SendAudio(ctx, d.Entry.Message.Audio)
		case err == nil:
			err = handle(ctx, call, d)
		}
		if err != nil {
			return err
		}
	}
}

// handle prints an entry, responds to it and commits it.
func handle(ctx context.Context, call *callruntime.Channel, d callruntime.Delivery) error {
	var chat struct{ Text string }
	if d.Entry.Message != nil {
		_ = json.Unmarshal(d.Entry.Message.Chat, &chat) // other messages have no text
	}
	fmt.Println("entry", call.ID, d.Position, d.Entry.Kind, chat.Text)
	// An entry that arrives again after a crash has the same effect, once.
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(call.ID+" "+d.Position)).String()
	if err := respond(ctx, call, d.Entry, chat.Text, id); err != nil {
		return err
	}
	return call.Commit(ctx, d.Position)
}

func respond(ctx context.Context, call *callruntime.Channel, e wire.Entry, text, id string) error {
	switch {
	case e.Kind == wire.KindToolResult:
		return say(ctx, call, id, "result "+string(e.Result))
	case e.Kind == wire.KindTimeout:
		return say(ctx, call, id, "timeout")
	case e.Kind != wire.KindFrame:
		return nil
	}
	command, argument, _ := strings.Cut(text, " ")
	switch command {
	case "say":
		return say(ctx, call, id, argument)
	case "ask":
		return ask(ctx, call, id, time.Minute)
	case "short":
		return ask(ctx, call, id, 300*time.Millisecond)
	case "end", "/end":
		return call.End(ctx, "bye")
	case "/mute":
		return call.Send(ctx, wire.ChannelMessage{Type: wire.TypeControl, Control: []byte(`{"command":"disable_text_chat"}`)})
	case "/count":
		n, err := strconv.Atoi(argument)
		for i := range n {
			err = errors.Join(err, say(ctx, call, "", strconv.Itoa(i)))
		}
		return err
	}
	m := *e.Message
	m.MessageID, m.Direction = id, ""
	return call.Send(ctx, m)
}

func ask(ctx context.Context, call *callruntime.Channel, id string, ttl time.Duration) error {
	item, err := call.Await(ctx, wire.Await{Kind: wire.ToolItem, WorkItemID: id, TTLMs: new(ttl.Milliseconds())})
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
