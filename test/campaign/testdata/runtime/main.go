// Command runtime is the runtime process of the upgrade test. The test builds it with the
// packages of both releases, so it uses only what both have. Unlike the runtime of the
// other tests it ends gracefully, because the credentials of 0.9.18 are random: a
// runtime that is killed there cannot repeat a request.
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

	"telapi/internal/calls"
	"telapi/callruntime/wire"
)

// options are the members of runtimeOptions that both releases have.
type options struct {
	Name, RedisURL string
	Lease, TTL     time.Duration
}

type process struct {
	options
	mu sync.Mutex // orders reports
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	p := &process{}
	if err := json.Unmarshal([]byte(os.Getenv("CAMPAIGN_RUNTIME")), &p.options); err != nil {
		return err
	}
	store, err := calls.Locate(p.RedisURL, "")
	if err != nil {
		return err
	}
	r, err := calls.New(calls.Options{Store: store, Name: p.Name, Lease: p.Lease})
	if err != nil {
		return err
	}
	defer r.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		ch, err := r.Accept(ctx, nil)
		if ctx.Err() != nil && ch == nil {
			return nil
		}
		if err != nil {
			p.report("problem", "-", "accept: "+err.Error())
			continue
		}
		running.Go(func() { p.serve(ctx, ch) })
	}
}

func (p *process) report(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Println(strings.ReplaceAll(strings.Join(words, " "), "\n", " "))
}

// serve handles a session until ctx ends, the session ends or another runtime claims it.
func (p *process) serve(ctx context.Context, ch *calls.Channel) {
	for {
		d, err := ch.Receive(ctx)
		if err == nil {
			err = p.handle(ch, d)
		}
		if err == nil {
			continue
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, calls.ErrEnded), errors.Is(err, calls.ErrClaimLost):
		default:
			p.report("problem", ch.ID, err.Error())
		}
		if err := ch.Close(context.Background()); err != nil {
			p.report("problem", ch.ID, "close: "+err.Error())
		}
		return
	}
}

func (p *process) handle(ch *calls.Channel, d calls.Delivery) error {
	ctx, e := context.Background(), d.Entry
	var err error
	switch e.Kind {
	case wire.KindFrame:
		p.report("frame", ch.ID, d.Position, e.Message.MessageID)
		var item calls.WorkItem
		item, err = ch.Await(ctx, calls.AwaitOptions{WorkItemID: e.Message.MessageID, TTL: p.TTL})
		if errors.Is(err, calls.ErrWorkItemExists) {
			err = nil // requested before the claim was lost
		} else if err == nil {
			p.report("awaited", ch.ID, item.ID, item.Token, item.Path)
		}
	case wire.KindBotMessage:
		p.report("callback", ch.ID, d.Position, e.WorkItemID)
		err = ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, MessageID: e.WorkItemID, Chat: []byte("{}")})
		if err == nil {
			p.report("sent", ch.ID, e.WorkItemID)
		}
	case wire.KindTimeout:
		p.report("timeout", ch.ID, e.WorkItemID)
	case wire.KindSession:
		if e.Event == "ended" {
			err = ch.End(ctx, "session ended")
		}
	}
	if err != nil {
		return err
	}
	return ch.Commit(ctx, d.Position)
}
