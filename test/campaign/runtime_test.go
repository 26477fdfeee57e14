package campaign

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/harness"
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
	Name, URL, Key string
	CA             []byte        // PEM
	TTL            time.Duration // of work items
}

// callRuntime is the main object of a runtime process.
type callRuntime struct {
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
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(o.CA)
	r := &callRuntime{ttl: o.TTL, started: time.Now()}
	rt, err := callruntime.New(callruntime.Options{URL: o.URL, Key: o.Key, Name: o.Name, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	if err != nil {
		return err
	}
	for range 4 {
		r.running.Go(func() { r.accept(rt) })
	}
	r.running.Wait()
	return errors.New("no session can be accepted")
}

func (r *callRuntime) accept(rt *callruntime.Runtime) {
	ctx := context.Background()
	for {
		ch, err := rt.Accept(ctx, wire.Accept{})
		if err != nil {
			r.report(reportProblem, "-", err.Error())
			return
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

// serve handles a session until another runtime claims it or it ends.
func (r *callRuntime) serve(ctx context.Context, ch *callruntime.Channel) {
	if ch.LostAt > r.started.UnixMilli() {
		r.report(reportLost, ch.ID)
	}
	err := harness.RunCall(ctx, ch, &conversation{callRuntime: r, ch: ch, last: wire.EntryNumber(ch.Position)})
	if !errors.Is(err, callruntime.ErrEnded) && !errors.Is(err, callruntime.ErrClaimLost) {
		r.report(reportProblem, ch.ID, err.Error())
	}
}

// conversation is a session that the runtime has claimed.
type conversation struct {
	*callRuntime
	ch        *callruntime.Channel
	awaited   []string // operations without an answer, in order
	handled   int      // entries
	last      int64    // number of the newest entry
	afterLoss bool     // the next entry can have any number
}

// Handle reports an entry as it was received, and responds to it.
func (c *conversation) Handle(ctx context.Context, d callruntime.Delivery) (commit bool, err error) {
	e, number := d.Entry, wire.EntryNumber(d.Position)
	if number != c.last+1 && !c.afterLoss {
		c.report(reportProblem, c.ch.ID, fmt.Sprintf("entry %d was received after entry %d", number, c.last))
	}
	c.last, c.afterLoss = number, false
	settled := func(id string) bool { return id == e.WorkItemID }
	switch e.Kind {
	case wire.KindFrame:
		c.report(reportFrame, c.ch.ID, d.Position, e.Message.MessageID)
		if !slices.Contains(c.awaited, e.Message.MessageID) {
			c.awaited = append(c.awaited, e.Message.MessageID)
		}
		err = c.await(ctx, e.Message.MessageID)
	case wire.KindBotMessage:
		c.report(reportCallback, c.ch.ID, d.Position, e.WorkItemID)
		c.awaited = slices.DeleteFunc(c.awaited, settled)
		err = c.ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, MessageID: e.WorkItemID, Chat: []byte("{}")})
		if err == nil {
			c.report(reportSent, c.ch.ID, e.WorkItemID)
		}
	case wire.KindTimeout:
		c.report(reportTimeout, c.ch.ID, e.WorkItemID)
		c.awaited = slices.DeleteFunc(c.awaited, settled)
	case wire.KindSession:
		if e.Recovered != nil {
			c.report(reportLost, c.ch.ID)
		}
		if e.Event == "ended" {
			err = c.ch.End(ctx, "session ended")
		}
	}
	c.handled++
	return c.handled%commitInterval == 0 || e.Kind == wire.KindChannelEnded, err
}

// Lost requests all missing answers again.
func (c *conversation) Lost(ctx context.Context) error {
	c.report(reportLost, c.ch.ID)
	c.afterLoss = true
	for _, id := range slices.Clone(c.awaited) {
		if err := c.await(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// await registers the work item of an operation and passes it to the provider.
func (c *conversation) await(ctx context.Context, id string) error {
	item, err := c.ch.Await(ctx, wire.Await{WorkItemID: id, TTLMs: new(c.ttl.Milliseconds())})
	if err == nil {
		c.report(reportAwaited, c.ch.ID, id, item.Token, harness.Path(item))
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
