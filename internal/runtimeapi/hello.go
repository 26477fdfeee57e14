package runtimeapi

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
)

const (
	defaultResume = 2 * time.Second
	maxResume     = time.Minute
	maxNameLength = 100
	resumeAtATime = 64 // claims
)

// greet handles the first frame. It returns true if the runtime may send other requests.
func (c *Conn) greet(envelope wire.Request, frame []byte, err error) bool {
	if err != nil || envelope.Op != wire.OpHello {
		c.fail(fault.New(fault.Validation, "The first request must be hello, a JSON object.").WithCause(err), channel.CloseInvalidFrames)
		return false
	}
	arrived := time.Now()
	var hello wire.Hello
	if err := decode(frame, &hello, func(issues *fault.Issues) { checkHello(&hello, issues) }); err != nil {
		c.reply(envelope.ID, nil, err)
		return false
	}
	if !c.helloTimer.Stop() {
		return false // the connection is being closed
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	if !c.params.Identified {
		c.key = hello.Key
	}
	p, err := c.authorize(ctx, c.key)
	if rejected(err) {
		c.fail(err, channel.CloseUnauthorized)
		return false
	}
	c.team, c.all, c.name, c.resume = p.TeamID, p.RunsAllCalls(), hello.Name, defaultResume
	c.id = c.service.connectionID(c.team, rand.Text())
	if hello.ResumeMs != nil {
		c.resume = time.Duration(*hello.ResumeMs) * time.Millisecond
	}
	if err == nil {
		err = c.service.start(ctx, c)
	}
	var resumed []*claim
	var replies []wire.Resumed
	if err == nil {
		resumed, replies, err = c.resumeClaims(ctx, hello.Resume, arrived)
	}
	if err != nil {
		c.fail(err, channel.CloseStoreUnavailable)
		return false
	}
	c.reply(envelope.ID, wire.Welcome{Instance: c.service.Instance, Connection: c.id, Resumed: replies, PingIntervalMs: PingInterval.Milliseconds(), Limits: limits()}, nil)
	if c.service.isConnectionID(hello.Previous, c.team) {
		c.running.Go(func() { _ = c.calls.Replace(c.ctx, hello.Previous) }) // if it fails, the connection expires
	}
	for _, cl := range resumed {
		cl.mu.Lock()
		if cl.channel.Lost {
			cl.pushLost()
		}
		cl.mu.Unlock()
		cl.start()
	}
	return true
}

func checkHello(h *wire.Hello, issues *fault.Issues) {
	if h.Name == "" {
		issues.Missing("/name", "Give the runtime a name.")
	}
	issues.CheckName("/name", h.Name, maxNameLength)
	issues.Check(h.Previous == "" || wire.ValidID(h.Previous), "/previous", fault.IssueValue, "Use the connection from the reply to an earlier hello.")
	if h.ResumeMs != nil {
		fault.CheckRange(issues, "/resumeMs", *h.ResumeMs, 0, maxResume.Milliseconds())
	}
}

// resumeClaims continues the claims of an earlier connection. Those that the runtime has
// lost are not returned. If the runtime has connected again since the request arrived, and
// this connection does not notice, the claims of that connection are kept.
func (c *Conn) resumeClaims(ctx context.Context, list []wire.Resume, arrived time.Time) (resumed []*claim, replies []wire.Resumed, err error) {
	replies = []wire.Resumed{}
	byChannel := map[string]wire.Resume{}
	for _, r := range list {
		if wire.ValidID(r.Channel) {
			byChannel[r.Channel] = r
		}
	}
	if len(byChannel) == 0 {
		return nil, replies, nil
	}
	var records []string
	for _, r := range byChannel {
		records = append(records, (&claim{id: r.Channel, secret: r.Claim}).record())
	}
	if err := c.calls.RecordClaims(ctx, c.id, records...); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var resuming errgroup.Group
	resuming.SetLimit(resumeAtATime)
	for _, r := range byChannel {
		resuming.Go(func() error {
			cl, reply, err := c.resumeClaim(ctx, r, arrived)
			mu.Lock()
			defer mu.Unlock()
			if cl != nil {
				resumed, replies = append(resumed, cl), append(replies, reply)
			}
			return err
		})
	}
	err = resuming.Wait()
	return resumed, replies, err
}

func (c *Conn) resumeClaim(ctx context.Context, r wire.Resume, arrived time.Time) (*claim, wire.Resumed, error) {
	team := c.team
	if c.all {
		team = ""
	}
	cl := c.newClaim(r.Channel, r.Claim)
	request := cl.request()
	request.RequestedAt = arrived
	ch, err := c.calls.Resume(ctx, request, r.Channel, r.Received, team)
	if errors.Is(err, calls.ErrClaimLost) || errors.Is(err, calls.ErrNotFound) || errors.Is(err, calls.ErrClaimed) || errors.Is(err, calls.ErrEnded) {
		c.calls.ForgetClaim(ctx, c.id, cl.record())
		return nil, wire.Resumed{}, nil
	}
	if err != nil {
		return nil, wire.Resumed{}, err
	}
	if !ch.Lost {
		cl.known = r.Received
	}
	items, err := openItems(ctx, ch)
	if err == nil && !c.add(cl, ch) {
		err = calls.ErrClosed
	}
	if err != nil {
		ch.Abandon()
		return nil, wire.Resumed{}, err
	}
	return cl, wire.Resumed{Channel: ch.ID, Position: ch.Committed, WorkItems: items, LostAt: lostAt(ch)}, nil
}
