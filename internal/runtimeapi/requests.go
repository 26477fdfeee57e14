package runtimeapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/speech"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

const (
	maxID           = 1<<53 - 1
	maxReasonLength = 200
	maxFilter       = 100 // endpoints or modes of an accept
)

// decodeEnvelope decodes the common part of a request. Its ID is 0 if it is invalid.
func decodeEnvelope(frame []byte) (wire.Request, error) {
	var issues fault.Issues
	var r wire.Request
	if err := strictjson.Decode(frame, &r, "", &issues); err != nil {
		return r, err
	}
	if !issues.Has("/id") && (r.ID < 1 || r.ID > maxID) && (r.Op != wire.OpAudio || r.ID != 0) {
		issues.Add("/id", fault.IssueValue, "Must be an integer from 1 to 2^53-1.")
		r.ID = 0
	}
	return r, issues.Err()
}

// decode decodes a request and checks it.
func decode[T any](frame []byte, check func(*T, *fault.Issues)) (*T, error) {
	var issues fault.Issues
	r := new(T)
	known, err := strictjson.DecodeKnown(frame, r, &issues)
	if err != nil {
		return r, err
	}
	if !known {
		for _, w := range strictjson.UnnamedMembers(frame, *r, "") {
			issues.Add(w.Path, fault.IssueUnknown, "%s", w.Message)
		}
	}
	check(r, &issues)
	return r, issues.Err()
}

// prepare decodes a request. It returns nil for an accept, which it runs: it waits in no queue.
func (c *Conn) prepare(envelope wire.Request, frame []byte) (*request, error) {
	switch envelope.Op {
	case wire.OpAccept:
		r, err := decode(frame, checkAccept)
		if err != nil {
			return nil, err
		}
		if err := c.acceptSession(r, int64(len(frame))); err != nil {
			c.reply(r.ID, nil, err)
		}
		return nil, nil
	case wire.OpOpen:
		open, err := newRequest(frame, checkOpen, c.open)
		open.silent = true // announce replies
		return open, err
	case wire.OpCommit:
		var position string
		commit, err := onChannel(c, envelope, frame, func(r *wire.Commit, issues *fault.Issues) {
			position = r.Position
			issues.Check(wire.EntryNumber(r.Position) > 0, "/position", fault.IssueValue, "Must be the position of an entry.")
		}, func(ctx context.Context, cl *claim, ch *calls.Channel, r *wire.Commit) (any, error) {
			return nil, cl.commit(ctx, ch, r.Position)
		})
		commit.position = position
		return commit, err
	case wire.OpSend:
		sent, err := decode(frame, checkSend)
		if err != nil {
			return nil, err
		}
		for i := range sent.Messages {
			id := &sent.Messages[i].MessageID
			*id = cmp.Or(*id, uuid.NewString())
		}
		send := &request{messages: sent.Messages}
		send.run = c.send(send)
		return send, nil
	case wire.OpAudio:
		audio, err := onChannel(c, envelope, frame, func(r *wire.SendAudio, issues *fault.Issues) {
			issues.Check(r.Message.Type == wire.TypeAudio && r.Message.Audio.Kind() == '{', "/message", fault.IssueValue, "Must be a message of type audio with an object as audio.")
		}, func(ctx context.Context, _ *claim, ch *calls.Channel, r *wire.SendAudio) (any, error) {
			return nil, ch.SendAudio(ctx, r.Message.Audio)
		})
		audio.silent = true
		return audio, err
	case wire.OpAwait:
		return onChannel(c, envelope, frame, checkAwait, c.await)
	case wire.OpCancel:
		return onChannel(c, envelope, frame, func(r *wire.Cancel, issues *fault.Issues) { checkID(issues, "/workItemId", r.WorkItemID) },
			func(ctx context.Context, _ *claim, ch *calls.Channel, r *wire.Cancel) (any, error) {
				return nil, ch.Cancel(ctx, r.WorkItemID)
			})
	case wire.OpEnd:
		return onChannel(c, envelope, frame, func(r *wire.End, issues *fault.Issues) { issues.CheckName("/reason", r.Reason, maxReasonLength) },
			func(ctx context.Context, _ *claim, ch *calls.Channel, r *wire.End) (any, error) {
				return nil, ch.End(ctx, r.Reason)
			})
	case wire.OpRelease:
		return newRequest(frame, func(r *wire.Request, issues *fault.Issues) { checkID(issues, "/channel", r.Channel) }, c.release)
	case wire.OpReport:
		return newRequest(frame, checkReports, c.report)
	case wire.OpHello:
		return nil, fault.New(fault.Validation, "/op: This connection has said hello already.")
	}
	var issues fault.Issues
	issues.Add("/op", fault.IssueValue, "Unknown operation.")
	return nil, issues.Err()
}

// newRequest decodes a request. run returns the reply; nil stands for {}.
func newRequest[T any](frame []byte, check func(*T, *fault.Issues), run func(context.Context, *T) (any, error)) (*request, error) {
	r, err := decode(frame, check)
	return &request{run: func(ctx context.Context) (any, error) { return run(ctx, r) }}, err
}

// onChannel is newRequest for a request on a claimed channel.
func onChannel[T any](c *Conn, envelope wire.Request, frame []byte, check func(*T, *fault.Issues), run func(context.Context, *claim, *calls.Channel, *T) (any, error)) (*request, error) {
	return newRequest(frame, func(r *T, issues *fault.Issues) {
		checkID(issues, "/channel", envelope.Channel)
		check(r, issues)
	}, func(ctx context.Context, r *T) (reply any, err error) {
		err = c.withClaim(envelope, func(cl *claim, ch *calls.Channel) (err error) {
			reply, err = run(ctx, cl, ch, r)
			return err
		})
		return reply, err
	})
}

func checkID(issues *fault.Issues, path, id string) {
	issues.Check(wire.ValidID(id), path, fault.IssueValue, "Must be 1 to 128 letters, digits and . _ : - (not . or .. alone).")
}

func checkOpen(r *wire.Open, issues *fault.Issues) {
	checkID(issues, "/channel", r.Channel)
	// A team could otherwise open the channel of another team's session before its browser does.
	issues.Check(!strings.HasPrefix(r.Channel, wire.SessionPrefix), "/channel", fault.IssueValue, "Must not start with %s, like the ID of a session. Accept sessions.", wire.SessionPrefix)
	if r.Endpoint == "" {
		issues.Missing("/endpoint", "Give the ID of the endpoint.")
	}
	for path, value := range map[string]string{"/team": r.Team, "/endpoint": r.Endpoint, "/mode": r.Mode, "/callId": r.CallID, "/transactionId": r.TransactionID} {
		issues.CheckName(path, value, maxReasonLength)
	}
	strictjson.CheckObject(&r.Profile, "/profile", issues)
	if r.Profile != nil && !issues.Has("/profile") {
		_, err := team.ParseProfile(r.Profile)
		issues.Check(err == nil, "/profile", fault.IssueValue, "Must be a gateway profile.")
	}
}

func checkSend(r *wire.Send, issues *fault.Issues) {
	checkID(issues, "/channel", r.Channel)
	list := r.Messages
	issues.Check(len(list) >= 1 && len(list) <= maxMessages, "/messages", fault.IssueTooMany, "Must have 1 to %d messages.", maxMessages)
	for i := range list {
		m, path := &list[i], fault.Pointer("/messages", i)
		if !m.Type.Known() || !m.Type.Durable() {
			issues.Add(path+"/type", fault.IssueValue, "Must be the type of a durable message.")
			continue
		}
		issues.Check(m.MessageID == "" || len(m.MessageID) == 36 && uuid.Validate(m.MessageID) == nil, path+"/messageId", fault.IssueValue, "Must be a UUID.")
		if payload, member := m.Payload(); payload == nil || payload.Kind() != '{' {
			issues.Add(path+"/"+member, fault.IssueType, "Must be an object.")
		}
	}
}

// send returns the function that sends the messages of a request.
func (c *Conn) send(r *request) func(context.Context) (any, error) {
	return func(ctx context.Context) (any, error) {
		err := c.withClaim(r.Request, func(cl *claim, ch *calls.Channel) error {
			position := cl.positionToCommit()
			err := ch.CommitAndSend(ctx, position, r.messages...)
			if err == nil {
				cl.committedTo(ch, position)
			}
			return err
		})
		return r.sent(), err
	}
}

func checkAwait(r *wire.Await, issues *fault.Issues) {
	r.WorkItemID, r.Scope = cmp.Or(r.WorkItemID, uuid.NewString()), cmp.Or(r.Scope, wire.ScopeItem)
	checkID(issues, "/workItemId", r.WorkItemID)
	fault.CheckOneOf(issues, "/scope", r.Scope, []wire.Scope{wire.ScopeItem, wire.ScopeChannel})
	checkItem(&r.Kind, &r.TTLMs, "", issues)
	for name, value := range map[string]string{"traceId": r.Trace.TraceID, "parentSpanId": r.Trace.ParentSpanID, "callId": r.Trace.CallID} {
		issues.CheckName("/trace/"+name, value, maxNameLength)
	}
}

// checkItem fills in the defaults of a work item and checks it.
func checkItem(kind *wire.WorkItemKind, ttl **int64, path string, issues *fault.Issues) {
	*kind, *ttl = cmp.Or(*kind, wire.BotItem), cmp.Or(*ttl, new(calls.DefaultTTL.Milliseconds()))
	fault.CheckOneOf(issues, path+"/kind", *kind, wire.WorkItemKinds)
	fault.CheckRange(issues, path+"/ttlMs", **ttl, 1, calls.MaxTTL.Milliseconds())
}

// await registers a work item. Its credential follows from what it names, so that a
// repetition on any instance returns the same.
func (c *Conn) await(ctx context.Context, cl *claim, ch *calls.Channel, r *wire.Await) (any, error) {
	id := r.WorkItemID
	var item calls.WorkItem
	position := cl.positionToCommit()
	err := c.service.Secrets.Try(calls.ErrWorkItemExists, func(key redact.Secret) (err error) {
		token, _ := auth.CallbackToken(key, ch.TeamID, ch.ID, id, r.Scope)
		item, err = ch.Await(ctx, calls.AwaitOptions{
			Kind: r.Kind, Scope: r.Scope, WorkItemID: id, TTL: time.Duration(*r.TTLMs) * time.Millisecond, Trace: r.Trace,
			Token: token, Commit: position,
		})
		return err
	})
	if err == nil {
		cl.committedTo(ch, position)
	}
	return wire.Awaited{WorkItemID: id, Token: item.Token, URL: c.params.BaseURL + item.Path, Deadline: item.ExpiresAt.UnixMilli()}, err
}

// release gives a claim back. The session is offered to other runtimes first: this one may have
// accepts that nobody waits for, because it is about to stop.
func (c *Conn) release(ctx context.Context, r *wire.Request) (any, error) {
	cl, err := c.find(*r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.released[r.Channel] = true
	c.mu.Unlock()
	defer time.AfterFunc(c.service.othersFirst, func() { c.forgetRelease(r.Channel) })
	if err := cl.current().Close(ctx); err != nil {
		return nil, err
	}
	c.remove(cl)
	return nil, nil
}

// forgetRelease lets the connection accept a session again that it has released.
func (c *Conn) forgetRelease(channelID string) {
	c.mu.Lock()
	delete(c.released, channelID)
	c.mu.Unlock()
	c.calls.Reoffer(channelID)
}

func checkReports(r *wire.Report, issues *fault.Issues) {
	list, now := r.Reports, time.Now()
	issues.Check(len(list) >= 1 && len(list) <= maxReports, "/reports", fault.IssueTooMany, "Must have 1 to %d reports.", maxReports)
	for i := range list {
		list[i].At = cmp.Or(list[i].At, now.UnixMilli())
		speech.CheckReport(&list[i], fault.Pointer("/reports", i), now, issues)
	}
}

// report reports usage of synthesized speech.
func (c *Conn) report(ctx context.Context, r *wire.Report) (any, error) {
	for i := range r.Reports {
		report := &r.Reports[i]
		report.TeamID = cmp.Or(report.TeamID, c.team)
		if c.onlyTeam != "" && report.TeamID != c.onlyTeam {
			return nil, fault.New(fault.NotFound, "%s: Team not found.", fault.Pointer("/reports", i)+"/teamId")
		}
	}
	for _, report := range r.Reports {
		if err := c.calls.ReportSpeech(ctx, report); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// open opens a channel or claims it, and replies.
func (c *Conn) open(ctx context.Context, r *wire.Open) (any, error) {
	r.Team = cmp.Or(r.Team, c.team)
	if c.onlyTeam != "" && r.Team != c.onlyTeam {
		return nil, fault.New(fault.NotFound, "Team not found.")
	}
	var cl *claim
	var ch *calls.Channel
	err := c.service.Secrets.Try(calls.ErrClaimed, func(key redact.Secret) (err error) {
		cl = c.newClaim(r.Channel, auth.Derive(key, "open", c.team, c.name, r.Channel)[:shortMAC])
		if err := c.recordClaims(ctx, cl.record()); err != nil {
			return err
		}
		ch, err = c.calls.Open(ctx, cl.attempt(), *r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return nil, c.announce(ctx, r.ID, cl, ch)
}

// checkAccept checks the texts of an accept, which are kept until a session arrives.
func checkAccept(r *wire.Accept, issues *fault.Issues) {
	checkFilter(issues, "/endpoints", r.Endpoints)
	checkFilter(issues, "/modes", r.Modes)
	for i, mode := range r.Modes {
		fault.CheckOneOf(issues, fault.Pointer("/modes", i), team.Mode(mode), team.Modes)
	}
	if r.AwaitChat != nil {
		checkItem(&r.AwaitChat.Kind, &r.AwaitChat.TTLMs, "/awaitChat", issues)
	}
}

func checkFilter(issues *fault.Issues, path string, list []string) {
	issues.Check(len(list) <= maxFilter, path, fault.IssueTooMany, "Must have at most %d items.", maxFilter)
	for i, text := range list {
		checkID(issues, fault.Pointer(path, i), text)
	}
}

// acceptSession waits for a session without a goroutine. The accept takes the size of its
// frame from the budget until it ends.
func (c *Conn) acceptSession(r *wire.Accept, bytes int64) error {
	var cl *claim // on the session that is claimed now
	d := &calls.Demand{Team: c.onlyTeam}
	d.Want = func(o *wire.Offer) bool {
		c.mu.Lock()
		released := c.released[o.SessionID]
		c.mu.Unlock()
		return !released && (len(r.Endpoints) == 0 || slices.Contains(r.Endpoints, o.EndpointID)) && (len(r.Modes) == 0 || slices.Contains(r.Modes, o.Mode))
	}
	d.Claim = func(ctx context.Context, sessionID string) (calls.Claim, error) {
		cl = c.newClaim(sessionID, rand.Text())
		if err := c.recordClaims(ctx, cl.record()); err != nil {
			return calls.Claim{}, err
		}
		attempt := cl.attempt()
		if r.AwaitChat != nil {
			attempt.AwaitChat = fmt.Sprintf("%s %d", r.AwaitChat.Kind, *r.AwaitChat.TTLMs)
		}
		return attempt, nil
	}
	d.Missed = func() { c.calls.ForgetClaim(c.ctx, c.id, cl.record()) }
	d.Got = func(ch *calls.Channel) {
		if ch != nil {
			c.got(d, r.ID, cl, ch)
		}
	}
	c.mu.Lock()
	if len(c.accepts) >= maxAccepts {
		c.mu.Unlock()
		return fault.New(fault.RateLimitExceeded, "This connection has %d outstanding accepts. Wait for sessions.", maxAccepts)
	}
	if err := c.service.requestBytes.Take(c.team, bytes); err != nil {
		c.mu.Unlock()
		return err
	}
	c.accepts[d] = bytes
	c.mu.Unlock()
	c.calls.Demand(d)
	return nil
}

// got replies to an accept. A session that was claimed for a connection that has ended is
// released at once.
func (c *Conn) got(d *calls.Demand, id int64, cl *claim, ch *calls.Channel) {
	c.mu.Lock()
	c.service.requestBytes.Return(c.team, c.accepts[d])
	delete(c.accepts, d)
	open := !c.closed
	if open {
		c.running.Add(1)
		defer c.running.Done()
	}
	c.mu.Unlock()
	if !open {
		ch.Undo()
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	if err := c.announce(ctx, id, cl, ch); err != nil {
		c.reply(id, nil, err)
	}
}
