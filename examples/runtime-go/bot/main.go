// Command bot is a call runtime that lets a bot talk with browsers. The bot gets each
// chat message by HTTP and posts its answer to telapi; examples/bot-python is one.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func main() {
	ctx := context.Background()
	url, key := os.Getenv("TELAPI_URL"), os.Getenv("TELAPI_KEY")
	if url == "" || key == "" || os.Getenv("BOT_URL") == "" {
		log.Fatal("Set TELAPI_URL, such as http://localhost:3001, TELAPI_KEY, an API key with the scope RUN_CALLS, and BOT_URL.")
	}
	runtime, err := callruntime.New(callruntime.Options{URL: url, Key: key, Name: "bot"})
	if err == nil {
		log.Print("connecting to ", url)
	}
	for err == nil {
		var call *callruntime.Channel
		if call, err = runtime.Accept(ctx, wire.Accept{}); err == nil {
			go serve(ctx, call)
		}
	}
	log.Fatal(err)
}

func serve(ctx context.Context, call *callruntime.Channel) {
	for {
		d, err := call.Receive(ctx)
		switch {
		case errors.Is(err, callruntime.ErrLost): // entries that were not committed arrive again
			continue
		case err == nil && d.Position == "": // audio
			continue
		case err != nil:
			log.Printf("session %s: %v", call.ID, err)
			return
		}
		if err := errors.Join(handle(ctx, call, d.Entry), call.Commit(ctx, d.Position)); err != nil {
			log.Printf("session %s: %v", call.ID, err)
		}
	}
}

func handle(ctx context.Context, call *callruntime.Channel, e wire.Entry) error {
	switch {
	case e.Kind == wire.KindFrame && e.Message.Type == wire.TypeChat:
		return ask(ctx, call, e)
	case e.Kind == wire.KindBotMessage:
		return say(ctx, call, e.Text)
	case e.Kind == wire.KindTimeout:
		return say(ctx, call, "The bot did not answer in time. Please try again.")
	case e.Kind == wire.KindCommand:
		switch command := e.Command.Command.(type) {
		case *wire.Transfer:
			return say(ctx, call, "You are being transferred to "+command.Target+".")
		case *wire.Hangup:
			return errors.Join(say(ctx, call, "The bot has ended the conversation."), call.End(ctx, command.Reason))
		}
	}
	return nil
}

func ask(ctx context.Context, call *callruntime.Channel, e wire.Entry) error {
	item, err := call.Await(ctx, wire.Await{Kind: wire.BotItem, Trace: e.Trace})
	if err != nil {
		return err
	}
	var chat struct{ Text string }
	_ = json.Unmarshal(e.Message.Chat, &chat)
	callback := map[string]any{"url": item.URL, "token": item.Token, "expiresAt": time.UnixMilli(item.Deadline)}
	body, _ := json.Marshal(map[string]any{"kind": wire.BotItem, "channelId": call.ID, "workItemId": item.WorkItemID, "text": chat.Text, "part": 1, "callback": callback}) // asks for part 1 of the answer only
	resp, err := http.Post(os.Getenv("BOT_URL"), "application/json", bytes.NewReader(body))
	if err == nil {
		_ = resp.Body.Close() // its status is enough
		if resp.StatusCode >= 300 {
			err = errors.New("ask the bot: " + resp.Status)
		}
	}
	if err != nil {
		return errors.Join(err, call.Cancel(ctx, item.WorkItemID), say(ctx, call, "The bot is not available."))
	}
	return nil
}

func say(ctx context.Context, call *callruntime.Channel, text string) error {
	chat, _ := json.Marshal(map[string]string{"text": text})
	return call.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: chat})
}
