package campaign

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// A runtime process reports each event as a line on stdout before it commits the
// entry, so that nothing it handled is unknown when it is killed. The first words
// are the event and the session.
const (
	reportFrame    = "frame"    // position, operation
	reportAwaited  = "awaited"  // operation, credential, path
	reportCallback = "callback" // position, operation
	reportSent     = "sent"     // operation
	reportLost     = "lost"     // the store lost data of the session
	reportTimeout  = "timeout"  // operation
	reportProblem  = "problem"  // text
)

// commitInterval is the number of entries between two commits.
const commitInterval = 4

// runtimeOptions configure a runtime process.
type runtimeOptions struct {
	Name, RedisURL string
	Lease          time.Duration // of claims
	TTL            time.Duration // of work items
	MinReplicas    int
}

// callRuntime is the main object of a runtime process.
type callRuntime struct {
	*calls.Runtime
	ttl     time.Duration
	started time.Time
	mu      sync.Mutex // orders reports
	running sync.WaitGroup
}

// runRuntime accepts sessions until the process is killed. options are
// runtimeOptions as JSON.
func runRuntime(options string) error {
	var o runtimeOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	store, err := calls.Locate(o.RedisURL, "")
	if err != nil {
		return err
	}
	rt, err := calls.New(calls.Options{Store: store, Name: o.Name, Lease: o.Lease, MinReplicas: o.MinReplicas})
	if err != nil {
		return err
	}
	r := &callRuntime{Runtime: rt, ttl: o.TTL, started: time.Now()}
	for range 4 {
		r.running.Go(r.accept)
	}
	r.running.Wait()
	return nil
}

func (r *callRuntime) accept() {
	ctx := context.Background()
	for {
		ch, err := r.Accept(ctx, nil)
		if err != nil {
			r.report(reportProblem, "-", "accept: "+err.Error())
			pause(ctx, time.Second)
			continue
		}
		r.running.Go(func() { r.serve(ctx, ch) })
	}
}

// report writes one line. A write to a pipe is not lost if the process is killed.
func (r *callRuntime) report(event, session string, details ...string) {
	line := strings.Join(append([]string{event, session}, details...), " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Println(strings.ReplaceAll(line, "\n", " "))
}

// serve handles a session until another runtime claims it or it ends. If the store
// lost data, it attaches again and requests all missing answers again.
func (r *callRuntime) serve(ctx context.Context, ch *calls.Channel) {
	if ch.LostAt.After(r.started) {
		r.report(reportLost, ch.ID)
	}
	var awaited []string // operations without an answer, in order
	for {
		err := r.handle(ctx, ch, &awaited)
		_ = ch.Close(ctx)
		switch {
		case errors.Is(err, calls.ErrEnded), errors.Is(err, calls.ErrClaimLost):
			return
		case errors.Is(err, calls.ErrLost), errors.Is(err, calls.ErrUnknownPosition):
			r.report(reportLost, ch.ID)
		default:
			r.report(reportProblem, ch.ID, err.Error())
			return
		}
		if ch, err = r.Attach(ctx, ch.ID); err != nil {
			return // claimed by another runtime, or offered when the browser reconnects
		}
		for _, id := range awaited {
			if err := r.await(ctx, ch, id); err != nil {
				break // handle returns the same error
			}
		}
	}
}

// handle receives entries until an error occurs.
func (r *callRuntime) handle(ctx context.Context, ch *calls.Channel, awaited *[]string) error {
	for handled := 1; ; handled++ {
		d, err := ch.Receive(ctx)
		if err != nil {
			return err
		}
		e := d.Entry
		settled := func(id string) bool { return id == e.WorkItemID }
		switch e.Kind {
		case wire.KindFrame:
			r.report(reportFrame, ch.ID, d.Position, e.Message.MessageID)
			if !slices.Contains(*awaited, e.Message.MessageID) {
				*awaited = append(*awaited, e.Message.MessageID)
			}
			err = r.await(ctx, ch, e.Message.MessageID)
		case wire.KindBotMessage:
			r.report(reportCallback, ch.ID, d.Position, e.WorkItemID)
			*awaited = slices.DeleteFunc(*awaited, settled)
			err = ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, MessageID: e.WorkItemID, Chat: []byte("{}")})
			if err == nil {
				r.report(reportSent, ch.ID, e.WorkItemID)
			}
		case wire.KindTimeout:
			r.report(reportTimeout, ch.ID, e.WorkItemID)
			*awaited = slices.DeleteFunc(*awaited, settled)
		case wire.KindSession:
			if e.Recovered != nil {
				r.report(reportLost, ch.ID)
			}
			if e.Event == "ended" {
				err = ch.End(ctx, "session ended")
			}
		}
		if err == nil && (handled%commitInterval == 0 || e.Kind == wire.KindChannelEnded) {
			err = ch.Commit(ctx, d.Position)
		}
		if err != nil {
			return err
		}
	}
}

// await registers the work item of an operation and passes it to the provider. ID
// and credential depend on the operation only, so that registering the item again
// has no effect.
func (r *callRuntime) await(ctx context.Context, ch *calls.Channel, id string) error {
	secret := sha256.Sum256([]byte(id))
	item, err := ch.Await(ctx, calls.AwaitOptions{
		WorkItemID: id, Token: "cbt_" + base64.RawURLEncoding.EncodeToString(secret[:]), TTL: r.ttl,
	})
	if err == nil {
		r.report(reportAwaited, ch.ID, id, item.Token, item.Path)
	}
	return err
}

// follow passes the reports of a runtime process to the ledger and the provider
// until the process ends.
func follow(ctx context.Context, stdout *os.File, l *ledger, p *provider) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		event, rest, _ := strings.Cut(lines.Text(), " ")
		session, rest, _ := strings.Cut(rest, " ")
		words := strings.Fields(rest)
		switch event {
		case reportFrame:
			l.update(words[1], func(o *operation) { o.frame.arrive(words[0]) })
		case reportAwaited:
			l.update(words[0], func(o *operation) { o.awaited = true })
			p.answer(ctx, words[0], session, words[1], words[2])
		case reportCallback:
			l.update(words[1], func(o *operation) { o.callback.arrive(words[0]) })
		case reportSent:
			l.update(words[0], func(o *operation) { o.message.acknowledged = true })
		case reportTimeout:
			l.update(words[0], func(o *operation) { o.timedOut = true })
		case reportLost:
			l.lossReported(session, true)
		default:
			l.problem("runtime: session %s: %s", session, rest)
		}
	}
}
