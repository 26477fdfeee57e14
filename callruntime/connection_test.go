package callruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func TestInvalidOptionsAreRejected(t *testing.T) {
	for want, o := range map[string]callruntime.Options{
		"Options.URL":  {URL: "localhost:3000", Key: "k", Name: "n"},
		"Options.Key":  {URL: "http://localhost", Name: "n"},
		"Options.Name": {URL: "http://localhost", Key: "k"},
	} {
		if _, err := callruntime.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about %s", o, err, want)
		}
	}
}

func TestUnreachableServiceIsReported(t *testing.T) {
	var log bytes.Buffer
	tries, unreachable := make(chan struct{}), errors.New("no such host")
	r, err := callruntime.New(callruntime.Options{
		URL: "http://telapi.invalid", Key: "tk_1_secret", Name: "test", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case tries <- struct{}{}:
			case <-ctx.Done():
			}
			return nil, unreachable
		},
	})
	must(t, err)
	limited, cancel := context.WithCancel(ctx(t))
	for range 3 { // the second attempt begins after the first has failed
		<-tries
	}
	cancel()
	if _, err := r.Accept(limited, wire.Accept{}); !errors.Is(err, context.Canceled) || !errors.Is(err, unreachable) {
		t.Errorf("accept: %v, want canceled and why there is no connection", err)
	}
	r.Close()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such host") {
		t.Errorf("log:\n%s\nwant one warning", text)
	}
}

func TestEntriesArriveOnceAndInOrderAcrossReconnects(t *testing.T) {
	s, _, p, c := claimed(t, "")
	p.entries("1-10", "2-10", "3-11")
	expect(t, c, "1-10", "2-10")
	p.entries("4-11")
	expect(t, c, "3-11")
	p.cut()
	p, resume := s.welcome(wire.Resumed{Channel: "s", Position: "1-10"})
	if len(resume) != 1 || resume[0].Channel != "s" || resume[0].Claim != "secret" || wire.EntryNumber(resume[0].Received) < 3 {
		t.Errorf("the runtime resumes %+v", resume)
	}
	p.entries("2-10", "3-11", "4-11", "5-12")
	expect(t, c, "4-11", "5-12")
	if c.Session.SessionID != "s" || c.Team != "t" || c.Endpoint != "e" {
		t.Errorf("channel %+v", c)
	}
}

func TestRequestIsRepeatedAfterLostReply(t *testing.T) {
	s, _, p, c := claimed(t, "")
	var item wire.Awaited
	sent := async(func() error { return c.Send(ctx(t), chat("hi")) })
	first := p.read(wire.OpSend)
	awaited := async(func() (err error) {
		item, err = c.Await(ctx(t), wire.Await{Kind: wire.ToolItem})
		return err
	})
	firstItem := p.read(wire.OpAwait)
	p.cut()
	p, _ = s.welcome(wire.Resumed{Channel: "s"})
	for range 2 {
		_, raw, err := p.conn.ReadMessage()
		must(t, err)
		switch text := string(raw); {
		case strings.Contains(text, first.Messages[0].MessageID) && first.Messages[0].MessageID != "":
			p.write(`{"id":` + id(text) + `,"ok":{"messageIds":["m"]}}`)
		case strings.Contains(text, firstItem.WorkItemID) && firstItem.WorkItemID != "":
			p.write(`{"id":` + id(text) + `,"ok":{"workItemId":"w","token":"cbt_x","url":"http://x/","deadline":5}}`)
		default:
			t.Fatalf("the runtime sent %s", raw)
		}
	}
	must(t, sent())
	if err := awaited(); err != nil || item != (wire.Awaited{WorkItemID: "w", Token: "cbt_x", URL: "http://x/", Deadline: 5}) {
		t.Errorf("awaited %+v, %v", item, err)
	}
}

// id returns the ID of a request.
func id(request string) string {
	_, rest, _ := strings.Cut(request, `"id":`)
	number, _, _ := strings.Cut(rest, ",")
	return number
}

func TestRepliesMayOvertakeOneAnother(t *testing.T) {
	_, _, p, c := claimed(t, "")
	var waits []func() error
	var requests []received
	for i := range 3 {
		want := strconv.Itoa(i)
		waits = append(waits, async(func() error {
			item, err := c.Await(ctx(t), wire.Await{WorkItemID: want})
			if item.Token != "token "+want {
				t.Errorf("item %s has %q", want, item.Token)
			}
			return err
		}))
		requests = append(requests, p.read(wire.OpAwait))
	}
	for _, q := range slices.Backward(requests) {
		p.reply(q, wire.Awaited{WorkItemID: q.WorkItemID, Token: "token " + q.WorkItemID})
	}
	for _, wait := range waits {
		must(t, wait())
	}
}

func TestDrainMovesChannelsToNextConnection(t *testing.T) {
	s, r := start(t)
	old, _ := s.welcome()
	c := claim(t, old, r, "")
	sent := async(func() error { return c.Send(ctx(t), chat("hi")) })
	first := old.read(wire.OpSend)
	old.entries("1-1")
	old.write(`{"event":"drain","withinMs":1000}`)
	next := s.accept()
	hello := next.read(wire.OpHello)
	old.write(`{"event":"claim_lost","channel":"s","claim":"secret"}`)
	next.reply(hello, wire.Welcome{Resumed: []wire.Resumed{{Channel: "s"}}, PingIntervalMs: 60_000})
	old.closed()
	again := next.read(wire.OpSend)
	if again.Messages[0].MessageID != first.Messages[0].MessageID {
		t.Errorf("the runtime sends another message: %s", again.Raw)
	}
	next.reply(again, wire.Sent{})
	must(t, sent())
	next.entries("1-1", "2-1")
	expect(t, c, "1-1", "2-1")
}

// The service releases what the former connection has claimed, because hello names it.
func TestSessionAcceptedOnDrainedConnectionIsIgnored(t *testing.T) {
	s, r := start(t)
	old := s.accept()
	old.reply(old.read(wire.OpHello), wire.Welcome{Connection: "first", PingIntervalMs: 60_000})
	accepted := async(func() error {
		c, err := r.Accept(ctx(t), wire.Accept{})
		if err == nil && c.ID != "s2" {
			t.Errorf("accepted %s", c.ID)
		}
		return err
	})
	q := old.read(wire.OpAccept)
	old.write(`{"event":"drain","withinMs":1000}`)
	next := s.accept()
	hello := next.read(wire.OpHello)
	if !strings.Contains(hello.Raw, `"previous":"first"`) {
		t.Errorf("got %s, want the former connection", hello.Raw)
	}
	old.reply(q, wire.Claimed{Channel: "s", Claim: "secret"})
	next.reply(hello, wire.Welcome{PingIntervalMs: 60_000})
	next.reply(next.read(wire.OpAccept), wire.Claimed{Channel: "s2", Claim: "secret"})
	must(t, accepted())
}

func TestLostClaimEndsChannel(t *testing.T) {
	t.Run("pushed", func(t *testing.T) {
		s, _, p, c := claimed(t, "")
		sent := async(func() error { return c.Send(ctx(t), chat("hi")) })
		p.read(wire.OpSend)
		p.write(`{"event":"claim_lost","channel":"s","claim":"of another connection"}`)
		p.entries("1-1")
		expect(t, c, "1-1")
		p.entries("2-1")
		p.write(`{"event":"claim_lost","channel":"s","claim":"secret"}`)
		wantError(t, "send", sent(), callruntime.ErrClaimLost)
		expectError(t, c, callruntime.ErrClaimLost)
		noError(t, "close", c.Close(ctx(t)))
		p.cut()
		if _, resume := s.welcome(); len(resume) > 0 {
			t.Errorf("the runtime resumes %+v", resume)
		}
	})
	t.Run("not resumed", func(t *testing.T) {
		s, _, p, c := claimed(t, "")
		p.cut()
		s.welcome()
		expectError(t, c, callruntime.ErrClaimLost)
		wantError(t, "end", c.End(ctx(t), ""), callruntime.ErrClaimLost)
	})
}

func TestCloseCodeDecidesWhetherToReconnect(t *testing.T) {
	for code, final := range map[int]bool{
		1000: false, 1001: false, 1002: false, 1011: false, 1012: false, 4001: false, 4002: false, 4499: false,
		1007: true, 1008: true, 1009: true, 4500: true, 4501: true, 4999: true,
	} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			s, r, p, c := claimed(t, "")
			p.write(`{"event":"error","error":{"code":"SOME_CODE","message":"the reason"}}`)
			p.close(code)
			if !final {
				p, _ = s.welcome(wire.Resumed{Channel: "s"})
				p.entries("1-1")
				expect(t, c, "1-1")
				return
			}
			_, err := c.Receive(ctx(t))
			if err == nil || !strings.Contains(err.Error(), "the reason") || errors.Is(err, callruntime.ErrUnauthorized) != (code == 4500) {
				t.Errorf("receive: %v", err)
			}
			if _, err := r.Accept(ctx(t), wire.Accept{}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(code)) {
				t.Errorf("accept: %v", err)
			}
		})
	}
}

func TestRejectedHandshake(t *testing.T) {
	for status, want := range map[int]error{http.StatusUnauthorized: callruntime.ErrUnauthorized, http.StatusForbidden: callruntime.ErrUnauthorized, http.StatusNotFound: nil} {
		s := startService(t, func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, `{"code":"SOME_CODE"}`, status)
			return true
		})
		_, err := s.runtime().Accept(ctx(t), wire.Accept{})
		if err == nil || !strings.Contains(err.Error(), "SOME_CODE") || want != nil && !errors.Is(err, want) {
			t.Errorf("status %d: %v", status, err)
		}
	}
	var attempts atomic.Int64
	s := startService(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if attempts.Add(1) > 2 {
			return false
		}
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return true
	})
	r := s.runtime()
	p, _ := s.welcome()
	claim(t, p, r, "")
}

func TestRejectedHello(t *testing.T) {
	s, r := start(t)
	p := s.accept()
	p.reject(p.read(wire.OpHello), "SERVICE_UNAVAILABLE") // not for good
	p = s.accept()
	p.read(wire.OpHello)
	p.close(1012)
	p = s.accept()
	p.reject(p.read(wire.OpHello), "FORBIDDEN")
	if _, err := r.Accept(ctx(t), wire.Accept{}); err == nil || !strings.Contains(err.Error(), "FORBIDDEN") {
		t.Errorf("accept: %v", err)
	}
}

func TestSilentConnectionIsReplaced(t *testing.T) {
	s, r := start(t)
	p := s.accept()
	p.reply(p.read(wire.OpHello), wire.Welcome{PingIntervalMs: 20})
	next, _ := s.welcome()
	claim(t, next, r, "")
}

func TestMalformedFramesDoNotStopRuntime(t *testing.T) {
	s, _, p, c := claimed(t, "")
	for _, ok := range []string{`"ok":[]`, `"ok":{"deadline":"soon"}`, `"new":1`, `"ok":{},"error":{"code":"ODD"}`} {
		awaited := async(func() error { _, err := c.Await(ctx(t), wire.Await{}); return err })
		q := p.read(wire.OpAwait)
		p.write(`{"id":` + strconv.FormatInt(q.ID, 10) + `,` + ok + `}`)
		if err := awaited(); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("reply %s: %v", ok, err)
		}
	}
	p.write(`{"id":12345,"ok":{}}`)
	p.write(`{"event":"new","channel":"s","member":1}`)
	p.write(`{"event":"entry","channel":"unknown","position":"1-1","entry":{}}`)
	p.entries("1-1")
	expect(t, c, "1-1")
	for _, malformed := range []string{`not JSON`, `[]`, `{"event":"entry","channel":"s","position":"x","entry":{}}`, `{"event":1}`} {
		p.write(malformed)
		p, _ = s.welcome(wire.Resumed{Channel: "s"})
	}
	p.write(`{"event":"entry","channel":"s","position":"2-1","entry":{"kind":7}}`)
	if d, err := c.Receive(ctx(t)); err == nil || d.Position != "2-1" {
		t.Errorf("received %q, %v, want 2-1 with an error", d.Position, err)
	}
	p.entries("3-1")
	expect(t, c, "3-1")
}

func TestUnavailableServiceIsAskedAgain(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	accepted := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{}); return err })
	p.reject(p.read(wire.OpAccept), "SERVICE_UNAVAILABLE")
	accept := p.read(wire.OpAccept)
	p.reply(accept, wire.Claimed{Channel: "other", Claim: "secret"})
	if err := accepted(); err != nil || accept.Retry {
		t.Errorf("repeated %s, %v; want no retry, which is about a channel", accept.Raw, err)
	}
	c := claim(t, p, r, "")
	ended := async(func() error { return c.End(ctx(t), "bye") })
	q, rejected := p.read(wire.OpEnd), time.Now()
	p.reject(q, "SERVICE_UNAVAILABLE")
	again := p.read(wire.OpEnd)
	if !again.Retry || time.Since(rejected) < time.Second {
		t.Errorf("repeated after %v: %s, want the default delay and retry", time.Since(rejected), again.Raw)
	}
	const delay = 1500
	rejected = time.Now()
	p.write(wire.Reply{ID: again.ID, Error: &wire.RuntimeError{Code: "SERVICE_UNAVAILABLE", Details: jsontext.Value(`{"retryAfterMs":` + strconv.Itoa(delay) + `}`)}})
	again = p.read(wire.OpEnd)
	if !again.Retry || time.Since(rejected) < delay*time.Millisecond {
		t.Errorf("repeated after %v: %s, want the delay of the service and retry", time.Since(rejected), again.Raw)
	}
	p.reply(again, struct{}{})
	must(t, ended())
}

// While it waits, a call ends with its context and with the claim. Other calls do not wait.
func TestCallEndsWhileServiceIsUnavailable(t *testing.T) {
	_, r, p, c := claimed(t, "")
	reject := func(q received) {
		p.write(wire.Reply{ID: q.ID, Error: &wire.RuntimeError{Code: "SERVICE_UNAVAILABLE", Details: jsontext.Value(`{"retryAfterMs":3600000}`)}})
	}
	short, cancel := context.WithCancel(ctx(t))
	cancelled := async(func() error { return c.End(short, "") })
	reject(p.read(wire.OpEnd))
	lost := async(func() error { return c.Cancel(ctx(t), "w") })
	reject(p.read(wire.OpCancel))
	settle(t, p, r)
	cancel()
	wantError(t, "end", cancelled(), context.Canceled)
	p.write(`{"event":"claim_lost","channel":"s","claim":"secret"}`)
	wantError(t, "cancel", lost(), callruntime.ErrClaimLost)
}
