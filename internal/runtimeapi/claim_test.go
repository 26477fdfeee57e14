package runtimeapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/redisstore"
	"telapi/test/embedded"
	"telapi/test/testcalls"
	"telapi/test/testkit"
)

// claimedSession returns a connection with a store, and a session that is claimed for it and
// not announced.
func claimedSession(t *testing.T) (*Conn, *countingSocket, *claim, *calls.Channel) {
	t.Helper()
	return claimedSessionOf(t, embedded.Open(t))
}

func claimedSessionOf(t *testing.T, store *redisstore.Store) (*Conn, *countingSocket, *claim, *calls.Channel) {
	t.Helper()
	channels := redisstore.NewChannels(store, wire.DefaultChannelLimits())
	_, err := channels.Attach(t.Context(), channel.AttachRequest{ChannelID: "s", ConnectionID: "b", Lease: time.Hour, TeamID: "team",
		Offer: []byte(`{"sessionId":"s","teamId":"team"}`), Entry: []byte(`{"kind":"session"}`)})
	testkit.Must(t, err)
	option := store.ClientOption()
	option.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	runtime, err := calls.New(calls.Options{Store: option, Name: "r", Lease: Lease})
	testkit.Must(t, err)
	t.Cleanup(runtime.Close)
	c, socket := newConn(t)
	c.calls = runtime
	cl := c.newClaim("s", "secret")
	request := cl.attempt()
	request.RequestedAt = time.Now().Add(-time.Minute) // the clock of the store has passed it
	ch, err := runtime.Attach(t.Context(), request, "s")
	testkit.Must(t, err)
	return c, socket, cl, ch
}

func (c *Conn) mustAdd(t *testing.T, cl *claim, ch *calls.Channel) {
	t.Helper()
	if !c.add(cl, ch) {
		t.Fatal("not added")
	}
}

// expire ends the lifetime of the connection.
func (c *Conn) expire(t *testing.T) {
	t.Helper()
	_, _, err := c.calls.KeepConnections(t.Context(), calls.Lifetime{ConnectionID: c.id})
	testkit.Must(t, err)
}

func markClosed(c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Otherwise Redis needs twice the memory for the fields of an ended channel.
func TestTokenOfClaimHasAtMost64Bytes(t *testing.T) {
	c, _ := newConn(t)
	if token := c.newClaim("s", "secret").attempt().Token; len(token) > 64 {
		t.Errorf("%s has %d bytes", token, len(token))
	}
}

// A session that cannot be announced to the runtime is offered to others.
func TestClaimIsUndoneIfItCannotBeAnnounced(t *testing.T) {
	for name, announce := range map[string]func(*Conn, *claim, *calls.Channel){
		"connection has ended": func(c *Conn, cl *claim, ch *calls.Channel) {
			markClosed(c)
			c.got(nil, 7, cl, ch)
		},
		"connection ends": func(c *Conn, cl *claim, ch *calls.Channel) {
			markClosed(c)
			if err := c.announce(t.Context(), 7, cl, ch); err == nil {
				t.Error("announced on a connection that has ended")
			}
		},
		"work items cannot be read": func(c *Conn, cl *claim, ch *calls.Channel) {
			c.cancel()
			c.got(nil, 7, cl, ch)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, socket, cl, ch := claimedSession(t)
			announce(c, cl, ch)
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
			defer cancel()
			if again, err := testcalls.Accept(ctx, c.calls, "other", nil); err != nil || again.ID != "s" {
				t.Errorf("accepted %v, %v; want the session", again, err)
			}
			if frames := socket.sent(); len(c.claims) > 0 || strings.Contains(frames, `"ok"`) {
				t.Errorf("the claim was announced: %s", frames)
			}
		})
	}
}

// A connection that releases a session may get it again before the release is forgotten. When
// the connection ends, the second claim is released too.
func TestSecondClaimOfConnectionIsSwept(t *testing.T) {
	c, _, first, ch := claimedSession(t)
	testkit.Must(t, c.calls.RecordClaims(t.Context(), c.id, first.record()))
	c.mustAdd(t, first, ch)
	testkit.Must(t, ch.Close(t.Context()))
	second := c.newClaim("s", "other")
	testkit.Must(t, c.calls.RecordClaims(t.Context(), c.id, second.record()))
	testkit.Must(t, testkit.ErrorOf(c.calls.Attach(t.Context(), second.attempt(), "s")))
	c.remove(first)
	testkit.Must(t, c.calls.Sweep(t.Context(), c.id))
	testkit.NoError(t, "the session is not released", testkit.ErrorOf(c.calls.Attach(t.Context(), calls.Claim{Name: "next", Token: "next"}, "s")))
}

// Another instance takes a connection for dead and releases its claim, and the connection claims the
// channel again. When it ends before it has noticed, that claim is released too.
func TestClaimMadeAgainIsSwept(t *testing.T) {
	c, _, cl, ch := claimedSession(t)
	c.mustAdd(t, cl, ch)
	testkit.Must(t, c.service.register(t.Context(), c))
	testkit.Must(t, c.calls.RecordClaims(t.Context(), c.id, cl.record()))
	c.expire(t)
	testkit.Must(t, c.calls.Sweep(t.Context(), c.id))
	testkit.Must(t, cl.recoverFrom(ch, calls.ErrLost))
	c.Close()
	testkit.Must(t, c.calls.Sweep(t.Context(), c.id))
	testkit.NoError(t, "the session is not released", testkit.ErrorOf(c.calls.Attach(t.Context(), calls.Claim{Name: "next", Token: "next"}, "s")))
}

// An instance takes a connection for dead, and releases its claims after the connection was kept again.
func TestConnectionThatWasKeptMeanwhileIsNotSwept(t *testing.T) {
	c, _, cl, ch := claimedSession(t)
	c.mustAdd(t, cl, ch)
	testkit.Must(t, c.calls.RecordClaims(t.Context(), c.id, cl.record()))
	c.expire(t)
	testkit.Must(t, c.service.register(t.Context(), c))
	testkit.Must(t, c.calls.Sweep(t.Context(), c.id))
	testkit.WantError(t, "the session is released", testkit.ErrorOf(c.calls.Attach(t.Context(), calls.Claim{Name: "next", Token: "next"}, "s")), calls.ErrClaimed)
}

// A runtime has connected again before the instance of its former connection notices the end. A
// session that is claimed for that connection is released, rather than kept to be resumed.
func TestReplacedConnectionKeepsNoClaims(t *testing.T) {
	c, socket, cl, ch := claimedSession(t)
	c.resume = time.Hour
	testkit.Must(t, c.service.register(t.Context(), c))
	testkit.Must(t, c.acceptSession(&wire.Accept{}, 1))
	testkit.Must(t, c.calls.Replace(t.Context(), c.id))
	testkit.WantError(t, "claim on a replaced connection", c.recordClaims(t.Context(), cl.record()), calls.ErrReplaced)
	testkit.Equal(t, "close code", socket.code, channel.CloseReplaced)
	testkit.Equal(t, "outstanding accepts", len(c.accepts), 0)
	c.mustAdd(t, cl, ch)
	c.Close()
	testkit.NoError(t, "the session is not released", testkit.ErrorOf(c.calls.Attach(t.Context(), calls.Claim{Name: "next", Token: "next"}, "s")))
}

// The reply to a recovery is lost. The next attempt gets the claim that the store has.
func TestRecoveryWithLostReplyIsRepeated(t *testing.T) {
	c, socket, cl, ch := claimedSession(t)
	c.mustAdd(t, cl, ch)
	lost, err := c.calls.Recover(t.Context(), cl.recoveryAttempt(), ch)
	testkit.Must(t, err)
	defer lost.Abandon()
	testkit.Must(t, cl.recoverFrom(ch, calls.ErrLost))
	testkit.NoError(t, "the next request", c.withClaim(wire.Request{Channel: "s"}, func(_ *claim, ch *calls.Channel) error { return ch.End(t.Context(), "done") }))
	if frames := socket.sent(); strings.Contains(frames, "claim_lost") {
		t.Errorf("pushed %s, want no claim_lost", frames)
	}
	testkit.Must(t, cl.recoverFrom(cl.current(), calls.ErrLost)) // with another token
}

// A channel that is lost again and again is reported as unavailable, and stays claimed.
func TestThirdLossInARowFailsTheRequest(t *testing.T) {
	c, socket, cl, ch := claimedSession(t)
	c.mustAdd(t, cl, ch)
	attempts := 0
	err := c.withClaim(wire.Request{Channel: "s"}, func(*claim, *calls.Channel) error {
		attempts++
		return calls.ErrLost
	})
	if attempts != 3 || !fault.Is(translate(err), fault.ServiceUnavailable) {
		t.Errorf("%v after %d attempts, want SERVICE_UNAVAILABLE after 3", err, attempts)
	}
	if frames := socket.sent(); strings.Count(frames, `"event":"lost"`) != 3 {
		t.Errorf("pushed %s, want each loss", frames)
	}
	testkit.NoError(t, "the next request", c.withClaim(wire.Request{Channel: "s"}, func(_ *claim, ch *calls.Channel) error { return ch.End(t.Context(), "done") }))
}

// A runtime that stops releases its sessions while its last accepts are outstanding.
func TestReleasedSessionIsOfferedToOthersFirst(t *testing.T) {
	for name, others := range map[string]bool{"another runtime accepts": true, "no other runtime": false} {
		t.Run(name, func(t *testing.T) {
			c, socket, cl, ch := claimedSession(t)
			t.Cleanup(c.Close)
			c.mustAdd(t, cl, ch)
			testkit.Must(t, c.acceptSession(&wire.Accept{Request: wire.Request{ID: 7}}, 1))
			c.service.othersFirst = 0
			if others {
				c.service.othersFirst = time.Hour
			}
			testkit.Must(t, testkit.ErrorOf(c.release(t.Context(), &wire.Request{Channel: "s"})))
			if !others {
				testkit.Until(t, "the runtime gets the session again", func() bool { return strings.Contains(socket.sent(), `"id":7,"ok":{"channel":"s"`) })
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
			defer cancel()
			if again, err := testcalls.Accept(ctx, c.calls, "other", nil); err != nil || again.ID != "s" {
				t.Errorf("accepted %v, %v; want the session", again, err)
			}
			if frames := socket.sent(); strings.Contains(frames, `"id":7`) {
				t.Errorf("the runtime has got the session again: %s", frames)
			}
		})
	}
}

// After two failovers the store can have an older claim of the runtime again. The connection
// keeps the channel, and the runtime learns of the loss.
func TestClaimIsKeptIfStoreHasOlderOne(t *testing.T) {
	for name, failure := range map[string]error{"found by a request": calls.ErrClaimLost, "found by a read": calls.ErrLost} {
		t.Run(name, func(t *testing.T) {
			store := embedded.Open(t)
			c, socket, cl, ch := claimedSessionOf(t, store)
			c.mustAdd(t, cl, ch)
			client, err := rueidis.NewClient(store.ClientOption())
			testkit.Must(t, err)
			t.Cleanup(client.Close)
			older := client.B().Hset().Key(kv.MetaKey("s")).FieldValue().FieldValue("claimToken", "older").FieldValue("claimRequestedAt", "1").Build()
			testkit.Must(t, client.Do(t.Context(), older).Error())
			attempts := 0
			err = c.withClaim(wire.Request{Channel: "s"}, func(_ *claim, ch *calls.Channel) error {
				if attempts++; attempts == 1 {
					return failure
				}
				return ch.End(t.Context(), "done")
			})
			if frames := socket.sent(); err != nil || strings.Count(frames, `"event":"lost"`) != 1 || strings.Contains(frames, "claim_lost") {
				t.Errorf("%v after %d attempts, pushed %s; want the loss", err, attempts, frames)
			}
		})
	}
}

func TestTooManyWorkItemsExceedALimit(t *testing.T) {
	testkit.WantFault(t, "await", translate(fmt.Errorf("await: %w", calls.ErrTooManyWorkItems)), fault.RateLimitExceeded)
}
