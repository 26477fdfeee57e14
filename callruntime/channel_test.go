package callruntime_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func TestLossIsReportedOnceAndEntriesContinue(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
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
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	p.entries("1-1", "2-1")
	expect(t, c, "1-1", "2-1")
	committed := async(func() error { return c.Commit(ctx(t), "1-1") })
	q := p.read(wire.OpCommit)
	p.write(`{"event":"lost","channel":"s","at":77}`)
	p.reject(q, "VALIDATION_ERROR")
	if err := committed(); err != nil {
		t.Errorf("commit that was under way: %v", err)
	}
	if err := c.Commit(ctx(t), "2-1"); err != nil {
		t.Errorf("commit before the loss is reported: %v", err)
	}
	expectError(t, c, callruntime.ErrLost)
}

func TestCommitIsRepeatedAfterLostReply(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
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
	if err := committed(); err != nil {
		t.Error(err)
	}
}

// A commit may wait at the service. Later requests do not overtake it, and the next commit
// reports its failure.
func TestCommitDoesNotWait(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	p.entries("1-1")
	expect(t, c, "1-1")
	if err := c.Commit(ctx(t), "1-1"); err != nil {
		t.Fatal(err)
	}
	sent := async(func() error { return c.Send(ctx(t), chat("0")) })
	commit := p.read(wire.OpCommit)
	send := p.read(wire.OpSend)
	p.reject(commit, "VALIDATION_ERROR")
	p.reply(send, wire.Sent{})
	if err := sent(); err != nil {
		t.Error(err)
	}
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
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "6-1")
	p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
	expect(t, c, "7-1")
	expectError(t, c, callruntime.ErrEnded)
	committed := async(func() error { return c.Commit(ctx(t), "7-1") })
	p.read(wire.OpCommit)
	p.cut()
	s.welcome() // the service has forgotten the claim
	if err := committed(); err != nil {
		t.Error(err)
	}
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
		s, r := start(t)
		p, _ := s.welcome()
		c := claim(t, p, r, "6-1")
		p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
		expect(t, c, "7-1")
		committed := async(func() error { return c.Commit(ctx(t), "7-1") })
		p.read(wire.OpCommit)
		lose(p, r)
		if err := committed(); !errors.Is(err, callruntime.ErrClaimLost) {
			t.Errorf("commit of a claim that is lost %s: %v, want ErrClaimLost", name, err)
		}
	}
}

func TestLossUndoesEnd(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "6-1")
	p.write(`{"event":"entry","channel":"s","position":"7-1","entry":{"kind":"channel_ended","channelId":"s","reason":"bye"}}`)
	expect(t, c, "7-1")
	committed := async(func() error { return c.Commit(ctx(t), "7-1") })
	p.read(wire.OpCommit)
	p.write(`{"event":"lost","channel":"s","at":77}`)
	if err := committed(); err != nil {
		t.Error(err)
	}
	expectError(t, c, callruntime.ErrLost)
	p.entries("7-9")
	expect(t, c, "7-9")
}

func TestMessagesOfOneCallShareRequest(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
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
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	for code, want := range map[string]error{"CONVERSATION_ENDED": callruntime.ErrEnded, "NOT_FOUND": callruntime.ErrNotFound, "IDEMPOTENCY_CONFLICT": callruntime.ErrWorkItemExists} {
		awaited := async(func() error { _, err := c.Await(ctx(t), wire.Await{}); return err })
		p.reject(p.read(wire.OpAwait), code)
		if err := awaited(); !errors.Is(err, want) {
			t.Errorf("%s: %v", code, err)
		}
	}
	cancelled := async(func() error { return c.Cancel(ctx(t), "w") })
	p.reject(p.read(wire.OpCancel), "NOT_FOUND")
	if err := cancelled(); !errors.Is(err, callruntime.ErrNotFound) {
		t.Errorf("cancel: %v", err)
	}
	opened := async(func() error {
		_, err := r.Open(ctx(t), "x", wire.Open{Endpoint: "e"})
		return err
	})
	p.reject(p.read(wire.OpOpen), "SESSION_IN_USE")
	if err := opened(); !errors.Is(err, callruntime.ErrClaimed) {
		t.Errorf("open: %v", err)
	}
}

func TestAwaitIsCancelledIfItsOutcomeIsUnknown(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	short, cancel := context.WithCancel(ctx(t))
	awaited := async(func() error { _, err := c.Await(short, wire.Await{}); return err })
	q := p.read(wire.OpAwait)
	cancel()
	if err := awaited(); !errors.Is(err, context.Canceled) {
		t.Errorf("await: %v", err)
	}
	if cancelled := p.read(wire.OpCancel); cancelled.WorkItemID != q.WorkItemID {
		t.Errorf("got %s", cancelled.Raw)
	}
}

// The runtime may have the channel under another claim, which knows the work item.
func TestAwaitThatWasNotSentIsNotCancelled(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	ended, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := c.Await(ended, wire.Await{}); !errors.Is(err, context.Canceled) {
		t.Errorf("await: %v", err)
	}
	next := async(func() error { return c.End(ctx(t), "done") })
	p.reply(p.read(wire.OpEnd), "{}") // and nothing before
	if err := next(); err != nil {
		t.Error(err)
	}
}

func TestAudioDoesNotDelayEntries(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
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
	if err := c.SendAudio(ctx(t), jsontext.Value(`{"data":"y"}`)); err != nil {
		t.Error(err)
	}
	_, raw, err := p.conn.ReadMessage()
	var q wire.SendAudio
	if err != nil || json.Unmarshal(raw, &q) != nil || q.Op != wire.OpAudio || q.Channel != "s" || string(q.Message.Audio) != `{"data":"y"}` {
		t.Errorf("got %s, %v", raw, err)
	}
}

func TestCloseReleasesClaim(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	closed := async(func() error { return c.Close(ctx(t)) })
	p.reject(p.read(wire.OpRelease), "NOT_FOUND") // a repeated release
	if err := closed(); err != nil {
		t.Error(err)
	}
	expectError(t, c, callruntime.ErrClosed)
	if err := c.Send(ctx(t), chat("late")); !errors.Is(err, callruntime.ErrClosed) {
		t.Errorf("send: %v", err)
	}
	settle(t, p, r) // the message was not sent: the channel may be open again
}

func TestClosedRuntimeEndsCalls(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
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
