package callruntime_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func TestLossIsReportedOnceAndEntriesContinue(t *testing.T) {
	s, r, p, c := claimed(t, "")
	p.entries("1-1", "2-1", "3-1")
	expect(t, c, "1-1", "2-1")
	p.write(`{"event":"lost","channel":"s","at":77}`)
	p.entries("2-9") // another entry than before
	settle(t, p, r)
	expectError(t, c, callruntime.ErrLost)
	expect(t, c, "2-9")
	p.cut()
	p, resume := s.welcome(wire.Resumed{Channel: "s", Position: "1-1", LostAt: 77})
	if resume[0].Received != "2-9" {
		t.Errorf("the runtime resumes %+v", resume)
	}
	p.write(`{"event":"lost","channel":"s","at":77}`)
	p.entries("2-9", "3-9")
	expect(t, c, "3-9")
	p.cut()
	p, _ = s.welcome(wire.Resumed{Channel: "s", Position: "2-9", LostAt: 78})
	p.write(`{"event":"lost","channel":"s","at":78}`)
	p.entries("3-10")
	settle(t, p, r)
	expectError(t, c, callruntime.ErrLost)
	expect(t, c, "3-10")
}

func TestCommitDuringLossHasNoEffect(t *testing.T) {
	_, _, p, c := claimed(t, "")
	p.entries("1-1", "2-1")
	expect(t, c, "1-1", "2-1")
	committed := async(func() error { return c.Commit(ctx(t), "1-1") })
	q := p.read(wire.OpCommit)
	if q.Claim != "secret" {
		t.Errorf("the request names the claim %q, want secret", q.Claim)
	}
	p.write(`{"event":"lost","channel":"s","at":77}`)
	p.reject(q, "VALIDATION_ERROR")
	noError(t, "commit that was under way", committed())
	noError(t, "commit before the loss is reported", c.Commit(ctx(t), "2-1"))
	expectError(t, c, callruntime.ErrLost)
}

func TestCommitIsRepeatedAfterLostReply(t *testing.T) {
	s, _, p, c := claimed(t, "")
	p.entries("1-1", "2-1")
	expect(t, c, "1-1", "2-1")
	committed := async(func() error { return c.Commit(ctx(t), "2-1") })
	p.read(wire.OpCommit)
	p.cut()
	p, resume := s.welcome(wire.Resumed{Channel: "s"})
	if len(resume) != 1 || resume[0].Received != "2-1" {
		t.Errorf("the runtime resumes %+v", resume)
	}
	q := p.read(wire.OpCommit) // before the entry is pushed again
	if q.Position != "2-1" {
		t.Errorf("got %s", q.Raw)
	}
	p.reply(q, struct{}{})
	must(t, committed())
}

// A commit may wait at the service. Later requests do not overtake it, and the next commit
// reports its failure.
func TestCommitDoesNotWait(t *testing.T) {
	_, _, p, c := claimed(t, "")
	p.entries("1-1")
	expect(t, c, "1-1")
	must(t, c.Commit(ctx(t), "1-1"))
	sent := async(func() error { return c.Send(ctx(t), chat("0")) })
	commit := p.read(wire.OpCommit)
	send := p.read(wire.OpSend)
	p.reject(commit, "VALIDATION_ERROR")
	p.reply(send, wire.Sent{})
	must(t, sent())
	err := c.Commit(ctx(t), "1-1")
	for n := 0; err == nil && n < 1000; n++ { // the runtime may still handle the reply
		p.reject(p.read(wire.OpCommit), "VALIDATION_ERROR")
		err = c.Commit(ctx(t), "1-1")
	}
	if err == nil || !strings.Contains(err.Error(), "VALIDATION_ERROR") {
		t.Errorf("commit after one that has failed: %v", err)
	}
}

func TestLastCommitClosesChannelEvenIfItsReplyIsLost(t *testing.T) {
	s, _, p, c := claimed(t, "6-1")
	p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
	expect(t, c, "7-1")
	expectError(t, c, callruntime.ErrEnded)
	committed := async(func() error { return c.Commit(ctx(t), "7-1") })
	p.read(wire.OpCommit)
	p.cut()
	s.welcome() // the service has forgotten the claim
	must(t, committed())
	if _, err := c.Receive(ctx(t)); err == nil {
		t.Error("the channel is still open")
	}
}

func TestLastCommitFailsIfClaimIsLost(t *testing.T) {
	for name, lose := range map[string]func(*peer, *callruntime.Runtime){
		"to another runtime": func(p *peer, _ *callruntime.Runtime) {
			p.write(`{"event":"claim_lost","channel":"s","claim":"secret"}`)
		},
		"to this runtime": func(p *peer, r *callruntime.Runtime) {
			accepted := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{}); return err })
			p.reply(p.read(wire.OpAccept), wire.Claimed{Channel: "s", Claim: "other", Position: "6-1"})
			_ = accepted()
		},
	} {
		_, r, p, c := claimed(t, "6-1")
		p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
		expect(t, c, "7-1")
		committed := async(func() error { return c.Commit(ctx(t), "7-1") })
		p.read(wire.OpCommit)
		lose(p, r)
		wantError(t, fmt.Sprintf("commit of a claim that is lost %s", name), committed(), callruntime.ErrClaimLost)
	}
}

func TestLossUndoesEnd(t *testing.T) {
	_, _, p, c := claimed(t, "6-1")
	p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
	expect(t, c, "7-1")
	committed := async(func() error { return c.Commit(ctx(t), "7-1") })
	p.read(wire.OpCommit)
	p.write(`{"event":"lost","channel":"s","at":77}`)
	must(t, committed())
	expectError(t, c, callruntime.ErrLost)
	p.entries("7-9")
	expect(t, c, "7-9")
}

func TestMessagesOfOneCallShareRequest(t *testing.T) {
	_, _, p, c := claimed(t, "")
	sent := async(func() error { return c.Send(ctx(t), chat("0"), chat("1")) })
	q := p.read(wire.OpSend)
	if len(q.Messages) != 2 {
		t.Fatalf("got %s", q.Raw)
	}
	for i, m := range q.Messages {
		if string(m.Chat) != `{"text":"`+strconv.Itoa(i)+`"}` || m.MessageID == "" {
			t.Errorf("message %d is %+v", i, m)
		}
	}
	p.reject(q, "VALIDATION_ERROR")
	var rejected *wire.RuntimeError
	if err := sent(); !errors.As(err, &rejected) || rejected.Code != "VALIDATION_ERROR" {
		t.Errorf("send: %v", err)
	}
	for _, invalid := range []string{`{"text"`, `{"text":"` + strings.Repeat("x", 1<<20) + `"}`} { // would end the connection
		if err := c.Send(ctx(t), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(invalid)}); err == nil {
			t.Errorf("sent %.20s", invalid)
		}
	}
}

func TestErrorsOfService(t *testing.T) {
	_, r, p, c := claimed(t, "")
	for code, want := range map[string]error{"CONVERSATION_ENDED": callruntime.ErrEnded, "NOT_FOUND": callruntime.ErrNotFound, "IDEMPOTENCY_CONFLICT": callruntime.ErrWorkItemExists} {
		awaited := async(func() error { _, err := c.Await(ctx(t), wire.Await{}); return err })
		p.reject(p.read(wire.OpAwait), code)
		wantError(t, code, awaited(), want)
	}
	cancelled := async(func() error { return c.Cancel(ctx(t), "w") })
	p.reject(p.read(wire.OpCancel), "NOT_FOUND")
	wantError(t, "cancel", cancelled(), callruntime.ErrNotFound)
	opened := async(func() error {
		_, err := r.Open(ctx(t), "x", wire.Open{Endpoint: "e"})
		return err
	})
	p.reject(p.read(wire.OpOpen), "SESSION_IN_USE")
	wantError(t, "open", opened(), callruntime.ErrClaimed)
}

func TestAwaitIsCancelledIfItsOutcomeIsUnknown(t *testing.T) {
	_, _, p, c := claimed(t, "")
	short, cancel := context.WithCancel(ctx(t))
	awaited := async(func() error { _, err := c.Await(short, wire.Await{}); return err })
	q := p.read(wire.OpAwait)
	cancel()
	wantError(t, "await", awaited(), context.Canceled)
	if cancelled := p.read(wire.OpCancel); cancelled.WorkItemID != q.WorkItemID {
		t.Errorf("got %s", cancelled.Raw)
	}
}

// The runtime may have the channel under another claim, which knows the work item.
func TestAwaitThatWasNotSentIsNotCancelled(t *testing.T) {
	_, _, p, c := claimed(t, "")
	ended, cancel := context.WithCancel(ctx(t))
	cancel()
	_, err := c.Await(ended, wire.Await{})
	wantError(t, "await", err, context.Canceled)
	next := async(func() error { return c.End(ctx(t), "done") })
	p.reply(p.read(wire.OpEnd), "{}") // and nothing before
	must(t, next())
}

func TestAudioDoesNotDelayEntries(t *testing.T) {
	_, r, p, c := claimed(t, "")
	for range 300 {
		p.write(`{"event":"audio","channel":"s","message":{"type":"audio","audio":{"data":"x"}}}`)
	}
	p.entries("1-1")
	settle(t, p, r)
	expect(t, c, "1-1")
	d, err := c.Receive(ctx(t))
	if err != nil || d.Position != "" || d.Entry.Message.Type != wire.TypeAudio {
		t.Errorf("received %+v, %v, want audio", d, err)
	}
	for range 255 {
		if d, err := c.Receive(ctx(t)); err != nil || d.Position != "" {
			t.Fatalf("received %+v, %v, want audio", d, err)
		}
	}
	p.entries("2-1")
	expect(t, c, "2-1") // the other 44 frames were dropped
	must(t, c.SendAudio(ctx(t), jsontext.Value(`{"data":"y"}`)))
	_, raw, err := p.conn.ReadMessage()
	var q wire.SendAudio
	if err != nil || json.Unmarshal(raw, &q) != nil || q.Op != wire.OpAudio || q.Channel != "s" || string(q.Message.Audio) != `{"data":"y"}` {
		t.Errorf("got %s, %v", raw, err)
	}
}

func TestCloseReleasesClaim(t *testing.T) {
	_, r, p, c := claimed(t, "")
	closed := async(func() error { return c.Close(ctx(t)) })
	p.reject(p.read(wire.OpRelease), "NOT_FOUND") // a repeated release
	must(t, closed())
	expectError(t, c, callruntime.ErrClosed)
	wantError(t, "send", c.Send(ctx(t), chat("late")), callruntime.ErrClosed)
	settle(t, p, r) // the message was not sent: the channel may be open again
}

func TestClosedRuntimeEndsCalls(t *testing.T) {
	_, r, p, c := claimed(t, "")
	received := async(func() error { _, err := c.Receive(ctx(t)); return err })
	accepted := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{}); return err })
	p.read(wire.OpAccept)
	r.Close()
	p.closed()
	for _, wait := range []func() error{received, accepted, func() error { return c.Send(ctx(t), chat("hi")) }} {
		if err := wait(); !errors.Is(err, callruntime.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
}

// watchedContext notes that a call waits.
type watchedContext struct {
	context.Context
	watched chan struct{}
}

func (c watchedContext) Done() <-chan struct{} {
	select {
	case c.watched <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

func TestAcceptTakesOverAbandonedAccept(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	short, cancel := context.WithCancel(ctx(t))
	abandoned := async(func() error { _, err := r.Accept(short, wire.Accept{}); return err })
	first := p.read(wire.OpAccept)
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waiting := watchedContext{ctx(t), make(chan struct{}, 1)}
	accepted := async(func() error { _, err := r.Accept(waiting, wire.Accept{}); return err })
	<-waiting.watched // otherwise the reply to the first could come before
	other := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{Modes: []string{"audio"}}); return err })
	p.reply(p.read(wire.OpAccept), wire.Claimed{Channel: "other", Claim: "x"}) // the only further request
	must(t, other())
	p.reply(first, wire.Claimed{Channel: "s", Claim: "secret"})
	must(t, accepted())
}

func TestSessionOfAbandonedAcceptIsReleased(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	short, cancel := context.WithCancel(ctx(t))
	abandoned := async(func() error { _, err := r.Accept(short, wire.Accept{}); return err })
	q := p.read(wire.OpAccept)
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	p.reply(q, wire.Claimed{Channel: "s", Claim: "secret"})
	if release := p.read(wire.OpRelease); release.Channel != "s" {
		t.Errorf("got %s", release.Raw)
	}
}

// The reply to an abandoned open arrives when the channel is being opened again.
func TestRepeatedOpenKeepsItsChannel(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	open := func(ctx context.Context, mode string) (received, func() error) {
		opened := async(func() error {
			_, err := r.Open(ctx, "s", wire.Open{Endpoint: "e", Mode: mode})
			return err
		})
		return p.read(wire.OpOpen), opened
	}
	short, cancel := context.WithCancel(ctx(t))
	first, abandoned := open(short, "chat")
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	second, opened := open(ctx(t), "audio")
	for _, q := range []received{first, second} {
		p.reply(q, wire.Claimed{Channel: "s", Claim: "secret"})
	}
	must(t, opened())
	for range 3 { // no release follows
		settle(t, p, r)
	}
}
