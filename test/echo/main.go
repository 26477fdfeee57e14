// Command echo is a call runtime for tests that are not written in Go. It sends
// every frame back to its browser and obeys a few commands in chat messages: /end,
// /mute and /count N.
//
// TELAPI_URL and TELAPI_KEY are the address of the service and a key with the scope
// RUN_CALLS.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	r, err := callruntime.New(callruntime.Options{URL: os.Getenv("TELAPI_URL"), Key: os.Getenv("TELAPI_KEY"), Name: "echo"})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		ch, err := r.Accept(ctx, wire.Accept{})
		if err != nil {
			return err
		}
		go func() {
			if err := converse(ctx, ch); !errors.Is(err, callruntime.ErrEnded) {
				fmt.Fprintln(os.Stderr, ch.ID, err)
			}
		}()
	}
}

// converse echoes the frames of one session until it ends.
func converse(ctx context.Context, ch *callruntime.Channel) error {
	for {
		d, err := ch.Receive(ctx)
		if err != nil {
			return err
		}
		if d.Entry.Kind == wire.KindFrame {
			if err := echo(ctx, ch, *d.Entry.Message); err != nil {
				return err
			}
		}
		if d.Position == "" { // audio
			continue
		}
		if err := ch.Commit(ctx, d.Position); err != nil {
			return err
		}
	}
}

// echo sends a frame back, or runs the command in it.
func echo(ctx context.Context, ch *callruntime.Channel, m wire.ChannelMessage) error {
	if m.Type == wire.TypeAudio {
		return ch.SendAudio(ctx, m.Audio)
	}
	var chat struct {
		Text string `json:"text"`
	}
	if m.Type == wire.TypeChat {
		if err := json.Unmarshal(m.Chat, &chat); err != nil {
			return err
		}
	}
	command, argument, _ := strings.Cut(chat.Text, " ")
	switch command {
	case "/end":
		return ch.End(ctx, "requested")
	case "/mute":
		return ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeControl, Control: jsontext.Value(`{"command":"disable_text_chat"}`)})
	case "/count":
		n, err := strconv.Atoi(argument)
		for i := range n {
			err = errors.Join(err, ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(fmt.Sprintf(`{"text":"%d"}`, i))}))
		}
		return err
	}
	m.MessageID, m.Direction = "", ""
	return ch.Send(ctx, m)
}
