package runtimeapi

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
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

// greet handles the first frame and the envelope that was decoded from it. It returns true if the
// runtime may send other requests.
func (c *Conn) greet(envelope wire.Request, decodeErr error, frame []byte) bool {
	arrived := time.Now()
	if decodeErr != nil || envelope.Op != wire.OpHello {
		c.fail(fault.New(fault.Validation, "The first request must be hello, a JSON object.").WithCause(decodeErr), channel.CloseInvalidFrames)
		return false
	}
	hello, err := decode(frame, checkHello)
	if err != nil {
		c.reply(envelope.ID, nil, err) // the runtime may send another one
		return false
	}
	if !c.helloTimer.Stop() {
		return false // the connection is being closed
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	resumed, err := c.begin(ctx, hello, arrived)
	switch {
	case rejected(err):
		c.fail(err, channel.CloseUnauthorized)
	case err != nil:
		c.fail(err, channel.CloseStoreUnavailable)
	default:
		c.welcome(hello, resumed)
	}
	return err == nil
}

// begin authorizes the runtime, registers the connection and resumes claims.
func (c *Conn) begin(ctx context.Context, hello *wire.Hello, arrived time.Time) (map[*claim]wire.Resumed, error) {
	if !c.params.Identified {
		c.key = hello.Key
	}
	p, err := c.authorize(ctx, c.key)
	if err != nil {
		return nil, err
	}
	c.team, c.name, c.resume = p.TeamID, hello.Name, defaultResume
	if !p.RunsAllCalls() {
		c.onlyTeam = p.TeamID
	}
	if hello.ResumeMs != nil {
		c.resume = time.Duration(*hello.ResumeMs) * time.Millisecond
	}
	c.id = connectionID(c.service.Secrets.Current, c.team, rand.Text())
	if err := c.service.register(ctx, c); err != nil {
		return nil, err
	}
	return c.resumeClaims(ctx, hello.Resume, arrived)
}

// welcome replies to hello. Then it pushes the entries of the resumed claims, and releases those
// of the previous connection that the runtime has not resumed.
func (c *Conn) welcome(hello *wire.Hello, resumed map[*claim]wire.Resumed) {
	c.reply(hello.ID, wire.Welcome{
		Instance: c.service.Instance, Connection: c.id, Resumed: slices.Collect(maps.Values(resumed)), PingIntervalMs: PingInterval.Milliseconds(),
		Limits: wire.RuntimeLimits{
			FrameBytes: frameBytes, MessageBytes: calls.MaxMessageBytes, Messages: maxMessages, PushedEntries: pushedEntries, PushedBytes: pushedBytes,
			Accepts: maxAccepts, WorkItems: calls.MaxWorkItems, TTLMs: calls.MaxTTL.Milliseconds(),
		},
	}, nil)
	if c.service.isConnectionID(hello.Previous, c.team) {
		c.running.Go(func() { _ = c.calls.Replace(c.ctx, hello.Previous) }) // if it fails, the connection expires
	}
	for cl := range resumed {
		cl.start()
	}
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
// lost are not returned. The runtime may have connected again since hello arrived, without this
// connection noticing: claims that it has resumed there since are not taken back.
func (c *Conn) resumeClaims(ctx context.Context, list []wire.Resume, arrived time.Time) (map[*claim]wire.Resumed, error) {
	claims := map[string]*claim{}
	for _, r := range list {
		if wire.ValidID(r.Channel) {
			cl := c.newClaim(r.Channel, r.Claim)
			cl.known = r.Received
			claims[r.Channel] = cl
		}
	}
	if err := c.calls.RecordClaims(ctx, c.id, records(claims)...); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	resumed := map[*claim]wire.Resumed{}
	var resuming errgroup.Group
	resuming.SetLimit(resumeAtATime)
	for _, cl := range claims {
		resuming.Go(func() error {
			reply, err := cl.resume(ctx, arrived)
			mu.Lock()
			defer mu.Unlock()
			if reply != nil {
				resumed[cl] = *reply
			}
			return err
		})
	}
	return resumed, resuming.Wait()
}

// resume returns nil if the runtime has lost the claim.
func (cl *claim) resume(ctx context.Context, arrived time.Time) (*wire.Resumed, error) {
	c, attempt := cl.conn, cl.attempt()
	attempt.RequestedAt = arrived
	ch, err := c.calls.Resume(ctx, attempt, cl.id, cl.known, c.onlyTeam)
	if calls.IsGone(err) {
		c.calls.ForgetClaim(ctx, c.id, cl.record())
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if ch.Lost {
		cl.known = ""
	}
	items, err := ch.WorkItems(ctx)
	if err == nil && !c.add(cl, ch) {
		err = calls.ErrClosed
	}
	if err != nil {
		ch.Abandon()
		return nil, err
	}
	return &wire.Resumed{Channel: ch.ID, Position: ch.Committed, WorkItems: items, LostAt: lostAt(ch)}, nil
}
