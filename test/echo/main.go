// Command echo is a call runtime for tests that are not written in Go. It sends
// every frame back to its browser and obeys a few commands in chat messages: /end,
// /mute and /count N.
//
//	echo TEAM    with DATA_DIR or REDIS_URL as the service has them
//
// It accepts the sessions of one team only.
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

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, team string) error {
	store, err := calls.Locate(os.Getenv("REDIS_URL"), os.Getenv("DATA_DIR"))
	if err != nil {
		return err
	}
	r, err := calls.New(calls.Options{Store: store, Name: "echo"})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		ch, err := r.Accept(ctx, func(o wire.Offer) bool { return o.TeamID == team })
		if err != nil {
			return err
		}
		go func() {
			if err := converse(ctx, ch); !errors.Is(err, calls.ErrEnded) {
				fmt.Fprintln(os.Stderr, ch.ID, err)
			}
		}()
	}
}

// converse echoes the frames of one session until it ends.
func converse(ctx context.Context, ch *calls.Channel) error {
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
func echo(ctx context.Context, ch *calls.Channel, m wire.ChannelMessage) error {
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
