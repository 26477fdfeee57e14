package callruntime_test

import (
	"context"
	"errors"
	"strconv"
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
	if err := c.Commit(ctx(t), "2-1"); !errors.Is(err, callruntime.ErrUnknownPosition) {
		t.Errorf("commit after the loss is reported: %v", err)
	}
}

func TestCommitWaitsUntilEntryIsPushedAgain(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	p.entries("1-1", "2-1")
	expect(t, c, "1-1", "2-1")
	p.cut()
	p, _ = s.welcome(wire.Resumed{Channel: "s"})
	committed := async(func() error { return c.Commit(ctx(t), "2-1") })
	sent := async(func() error { return c.Send(ctx(t), chat("hi")) })
	p.reply(p.read(wire.OpSend), wire.Sent{}) // not the commit
	if err := sent(); err != nil {
		t.Error(err)
	}
	p.entries("1-1", "2-1")
	p.read(wire.OpCommit)
	p.cut() // the reply is lost
	p, _ = s.welcome(wire.Resumed{Channel: "s", Position: "2-1"})
	q := p.read(wire.OpCommit)
	if q.Position != "2-1" {
		t.Errorf("got %s", q.Raw)
	}
	p.reply(q, struct{}{})
	if err := committed(); err != nil {
		t.Error(err)
	}
	for _, unknown := range []string{"", "3-1", "x"} {
		if err := c.Commit(ctx(t), unknown); !errors.Is(err, callruntime.ErrUnknownPosition) {
			t.Errorf("commit %q: %v", unknown, err)
		}
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

func TestMessagesAreSentInOrderAndInBatches(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	const messages = 200
	sent := async(func() error {
		var waits []func() error
		for i := range messages {
			waits = append(waits, c.SendAsync(ctx(t), chat(strconv.Itoa(i))))
		}
		var err error
		for _, wait := range waits {
			err = errors.Join(err, wait())
		}
		return err
	})
	next, requests := 0, 0
	for ; next < messages; requests++ {
		q := p.read(wire.OpSend)
		if len(q.Messages) > 64 {
			t.Fatalf("%d messages in one request", len(q.Messages))
		}
		for _, m := range q.Messages {
			if string(m.Chat) != `{"text":"`+strconv.Itoa(next)+`"}` || m.MessageID == "" || m.SessionID != "s" || m.Direction != wire.ToBrowser || m.Timestamp == 0 {
				t.Fatalf("message %d is %+v", next, m)
			}
			next++
		}
		p.reply(q, wire.Sent{})
	}
	if err := sent(); err != nil {
		t.Error(err)
	}
	if requests == messages {
		t.Error("no messages shared a request")
	}
}

func TestInvalidMessageDoesNotAffectOthers(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	first := c.SendAsync(ctx(t), chat("first"))
	q := p.read(wire.OpSend)
	good, bad := c.SendAsync(ctx(t), chat("good")), c.SendAsync(ctx(t), chat("bad"))
	p.reply(q, wire.Sent{})
	p.reject(p.read(wire.OpSend), "VALIDATION_ERROR")
	p.reply(p.read(wire.OpSend), wire.Sent{})
	p.reject(p.read(wire.OpSend), "VALIDATION_ERROR")
	var rejected *wire.RuntimeError
	if err := bad(); !errors.As(err, &rejected) || rejected.Code != "VALIDATION_ERROR" {
		t.Errorf("bad message: %v", err)
	}
	if err := errors.Join(first(), good()); err != nil {
		t.Error(err)
	}
	for _, m := range []wire.ChannelMessage{
		{Type: wire.TypeChat}, {Type: wire.TypeChat, Chat: jsontext.Value(`"text"`)}, {Type: wire.TypeAudio, Audio: jsontext.Value(`{}`)}, {Type: "new"},
		{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + string(make([]byte, 64<<10)) + `"}`)},
	} {
		if err := c.Send(ctx(t), m); err == nil {
			t.Errorf("a message of type %q was sent", m.Type)
		}
	}
}

func TestErrorsOfService(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	for code, want := range map[string]error{"CONVERSATION_ENDED": callruntime.ErrEnded, "NOT_FOUND": callruntime.ErrNotFound, "IDEMPOTENCY_CONFLICT": callruntime.ErrWorkItemExists} {
		awaited := async(func() error { _, err := c.Await(ctx(t), callruntime.AwaitOptions{}); return err })
		p.reject(p.read(wire.OpAwait), code)
		if err := awaited(); !errors.Is(err, want) {
			t.Errorf("%s: %v", code, err)
		}
	}
	cancelled := async(func() error { return c.Cancel(ctx(t), "w") })
	p.reject(p.read(wire.OpCancel), "NOT_FOUND")
	if err := cancelled(); !errors.Is(err, callruntime.ErrWorkItemNotFound) {
		t.Errorf("cancel: %v", err)
	}
	opened := async(func() error {
		_, err := r.Open(ctx(t), callruntime.OpenOptions{ChannelID: "x", EndpointID: "e"})
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
	awaited := async(func() error { _, err := c.Await(short, callruntime.AwaitOptions{}); return err })
	q := p.read(wire.OpAwait)
	cancel()
	if err := awaited(); !errors.Is(err, context.Canceled) {
		t.Errorf("await: %v", err)
	}
	if cancelled := p.read(wire.OpCancel); cancelled.WorkItemID != q.WorkItemID {
		t.Errorf("got %s", cancelled.Raw)
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
	if dropped := c.AudioDropped(); dropped != 300-256 {
		t.Errorf("%d audio frames were dropped", dropped)
	}
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
}

func TestClosedRuntimeEndsCalls(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	c := claim(t, p, r, "")
	received := async(func() error { _, err := c.Receive(ctx(t)); return err })
	accepted := async(func() error { _, err := r.Accept(ctx(t), callruntime.Filter{}); return err })
	p.read(wire.OpAccept)
	r.Close()
	p.closed()
	for _, wait := range []func() error{received, accepted, func() error { return c.Send(ctx(t), chat("hi")) }} {
		if err := wait(); !errors.Is(err, callruntime.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
}
