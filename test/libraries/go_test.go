package libraries

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/testkit"
)

// These tests are about what only the library for Go has. They are the service's side of the
// scenarios.

// claimed starts a runtime that has opened the channel "s".
func claimed(t *testing.T) (*script, *callruntime.Runtime, *callruntime.Channel) {
	t.Helper()
	l := startLibrary(t, "go")
	s := newScript(t, l)
	s.play("claim")
	r := l.driver.runtimes[s.url]
	return s, r.Runtime, r.channels["s"]
}

// ctx returns a context that ends with the test, or when it takes too long.
func ctx(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	t.Cleanup(cancel)
	return c
}

// async runs f in a goroutine. The returned function waits for its result.
func async(f func() error) (wait func() error) {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(testkit.Timeout):
			return errors.New("timed out")
		}
	}
}

func chat(json string) wire.ChannelMessage {
	return wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(json)}
}

// A commit may fail while the service is asked to do other things.
func TestFailedCommitIsReportedByNextCommit(t *testing.T) {
	s, _, c := claimed(t)
	s.play("entries 1-1\n gets s 1-1")
	testkit.Must(t, c.Commit(ctx(t), "1-1"))
	s.play("recv commit\n reject VALIDATION_ERROR\n settle")
	err := c.Commit(ctx(t), "1-1")
	for n := 0; err == nil && n < 1000; n++ { // the runtime may still handle the reply
		s.play("recv commit\n reject VALIDATION_ERROR")
		err = c.Commit(ctx(t), "1-1")
	}
	if err == nil || !strings.Contains(err.Error(), "VALIDATION_ERROR") {
		t.Errorf("commit after one that has failed: %v", err)
	}
}

func TestMessagesOfOneCallShareRequest(t *testing.T) {
	s, _, c := claimed(t)
	sent := async(func() error { return c.Send(ctx(t), chat(`{"text":"0"}`), chat(`{"text":"1"}`)) })
	s.play(`recv send {"messages":[{"messageId":"$a","chat":{"text":"0"}},{"messageId":"$b","chat":{"text":"1"}}]}
		reject VALIDATION_ERROR`)
	if rejected, is := errors.AsType[*wire.RuntimeError](sent()); !is || rejected.Code != "VALIDATION_ERROR" {
		t.Errorf("send: %v", rejected)
	}
	if c.Send(ctx(t), chat(`{"text"`)) == nil { // would end the connection
		t.Error("sent what is not JSON")
	}
}

// The runtime may have the channel under another claim, which knows the work item.
func TestAwaitThatWasNotSentIsNotCancelled(t *testing.T) {
	s, _, c := claimed(t)
	ended, cancel := context.WithCancel(ctx(t))
	cancel()
	_, err := c.Await(ended, wire.Await{})
	testkit.WantError(t, "await", err, context.Canceled)
	s.play("settle\n settle")
}

func TestAudioDoesNotDelayEntries(t *testing.T) {
	s, _, c := claimed(t)
	s.play(strings.Repeat(`push {"event":"audio","channel":"s","message":{"type":"audio","audio":{"data":"x"}}}`+"\n", 300))
	s.play("entries 1-1\n settle\n gets s 1-1")
	for range 256 {
		if d, err := c.Receive(ctx(t)); err != nil || d.Position != "" || d.Entry.Message.Type != wire.TypeAudio {
			t.Fatalf("received %+v, %v, want audio", d, err)
		}
	}
	s.play("entries 2-1\n gets s 2-1") // the other 44 frames were dropped
	testkit.Must(t, c.SendAudio(ctx(t), []byte(`{"data":"y"}`)))
	s.play(`recv audio {"channel":"s","claim":"secret","message":{"type":"audio","audio":{"data":"y"}}}`)
}

func TestCommitOfAudioSendsNothing(t *testing.T) {
	s, _, c := claimed(t)
	testkit.Must(t, c.Commit(ctx(t), ""))
	testkit.Must(t, c.SendAudio(ctx(t), []byte(`{"data":"y"}`)))
	s.play(`recv audio {"channel":"s","claim":"secret","message":{"type":"audio","audio":{"data":"y"}}}`)
}

func TestClosedRuntimeEndsCalls(t *testing.T) {
	s, r, c := claimed(t)
	s.play("call accepted accept\n recv accept\n call received receive s")
	r.Close()
	s.peer().closed(t)
	s.play("fails accepted CLOSED\n fails received CLOSED")
	testkit.WantError(t, "send", c.Send(ctx(t), chat(`{}`)), callruntime.ErrClosed)
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
	s, r, _ := claimed(t)
	s.play("call abandoned accept\n recv accept @first\n abandon abandoned\n fails abandoned CANCELLED")
	waiting := watchedContext{ctx(t), make(chan struct{}, 1)}
	accepted := async(func() error { _, err := r.Accept(waiting, wire.Accept{}); return err })
	<-waiting.watched // otherwise the reply to the first could come before
	other := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{Modes: []string{"audio"}}); return err })
	s.play(`recv accept {"modes":["audio"]}
		reply {"channel":"other","claim":"x"}`) // the only further request
	testkit.Must(t, other())
	s.play(`reply @first {"channel":"s2","claim":"secret"}`)
	testkit.Must(t, accepted())
}

func TestDelivery(t *testing.T) {
	s, r, _ := claimed(t)
	accepted := make(chan *callruntime.Channel, 1)
	wait := async(func() error {
		c, err := r.Accept(ctx(t), wire.Accept{Modes: []string{"chat"}, Endpoints: []string{"e"}})
		accepted <- c
		return err
	})
	s.play(`recv accept {"modes":["chat"],"endpoints":["e"]}
		reply {"channel":"s2","claim":"secret","team":"t","endpoint":"e","session":{"sessionId":"s2"},"position":""}
		push {"event":"entry","channel":"s2","position":"1-1","entry":{"kind":"metadata","channelId":"s2","metadata":"x"}}`)
	testkit.Must(t, wait())
	c := <-accepted
	d, err := c.Receive(ctx(t))
	if err != nil || c.Session.SessionID != "s2" || c.Team != "t" || c.Endpoint != "e" || d.Entry.Kind != wire.KindMetadata || !json.Valid(d.JSON) {
		t.Errorf("channel %+v received %+v, %v", c, d, err)
	}
}
