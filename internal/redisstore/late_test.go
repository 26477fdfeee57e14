package redisstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// The server stops for longer than an operation waits, and then runs the commands
// that it received before.
func TestFailedCallsHaveNoEffectLater(t *testing.T) {
	redis := testkit.StartRedis(t)
	d := newCallbackFixture(t, redisOptions(redis), nil)
	item := d.await(calls.AwaitOptions{})
	d.attach("live")

	redis.Freeze()
	if _, err := d.channels.Attach(t.Context(), d.attachment("late")); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("attach to a stopped server: %v, want %s", err, fault.ServiceUnavailable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Await(ctx, calls.AwaitOptions{WorkItemID: "late", Token: calls.NewToken()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await on a stopped server: %v, want %v", err, context.DeadlineExceeded)
	}
	sending, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Send(sending, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"late"}`)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("send on a stopped server: %v, want %v", err, context.DeadlineExceeded)
	}
	redis.Thaw()

	testkit.Until(t, "the server answers", func() bool { return d.store.Ping(t.Context()) == nil })
	if got := d.frame("live", "1"); got != channel.Appended {
		t.Errorf("frame of the live connection: %s, want %s", got, channel.Appended)
	}
	d.await(calls.AwaitOptions{WorkItemID: "next"}) // on the runtime's connection: after its late calls
	items, err := d.WorkItems(t.Context())
	if err != nil || len(items) != 2 || items[0].ID == "late" || items[1].ID == "late" {
		t.Errorf("open items: %+v, %v; want %s and next", items, err, item.ID)
	}
	if got := d.attach("other"); got.Head.ID != "" {
		t.Errorf("a message was sent late: %s", got.Head.ID)
	}
}

// noReplyConn loses replies to await.lua while silent is set: it closes the connection
// when such a reply arrives.
type noReplyConn struct {
	net.Conn
	silent *atomic.Bool
}

func (c noReplyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.silent.Load() && bytes.Contains(p[:n], []byte("awaited")) {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// The item is registered, but all replies are lost until the caller times out. The
// answers to later items do not wait for it.
func TestAwaitWithLostRepliesBlocksNothing(t *testing.T) {
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	silent := &atomic.Bool{}
	runtime := d.runtime("r", func(o *calls.Options) {
		o.Store.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			return noReplyConn{conn, silent}, err
		}
	})
	c, err := runtime.Attach(t.Context(), d.id)
	if err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Await(ctx, calls.AwaitOptions{WorkItemID: "unknown", TTL: time.Hour}); err == nil {
		t.Fatal("await succeeded although its replies were lost")
	}
	silent.Store(false)
	next, err := c.Await(t.Context(), calls.AwaitOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := d.deliver(d.delivery(next, "answer")); status != callback.Routed && status != callback.Parked {
		t.Fatalf("answer: %s, want %s or %s", status, callback.Routed, callback.Parked)
	}
	testkit.Until(t, "the answer is routed", func() bool { return strings.Contains(d.events(), "answer") })
}

// Another runtime with the same name has claimed the channel while this one was
// suspended for longer than its lease.
func TestReceiveIsFenced(t *testing.T) {
	redis := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(redis), nil)
	s.attach("a")
	frozen := &atomic.Bool{}
	const lease = 500 * time.Millisecond
	suspended := s.runtime("suspended", func(o *calls.Options) {
		o.Lease = lease
		o.Store.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			return stoppedConn{conn, frozen}, err
		}
	})
	c, err := suspended.Attach(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.frame("a", "1")
	s.frame("a", "2")
	s.receive(c, "1") // "2" is fetched
	frozen.Store(true)
	testkit.Until(t, "the claim expires", func() bool {
		_, err := s.runtime("successor").Attach(t.Context(), s.id)
		return err == nil
	})
	frozen.Store(false)
	if d, err := c.Receive(t.Context()); !errors.Is(err, calls.ErrClaimLost) {
		t.Errorf("received %s, %v; want ErrClaimLost", d.JSON, err)
	}
}

// The first comparison of clocks took long, because a busy machine delayed the reply. A
// later claim still replaces an earlier one under the same name.
func TestClaimAfterImpreciseClock(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	slow := &atomic.Bool{}
	slow.Store(true)
	later := s.runtime("r", func(o *calls.Options) {
		o.Store.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			return slowConn{conn, slow}, err
		}
	})
	slow.Store(false)
	s.attachRuntime("r")
	if _, err := later.Attach(t.Context(), s.id); err != nil {
		t.Error(err)
	}
}

// slowConn delays what it receives while slow is set.
type slowConn struct {
	net.Conn
	slow *atomic.Bool
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.slow.Load() {
		time.Sleep(500 * time.Millisecond)
	}
	return n, err
}

// stoppedConn sends nothing while stopped is set.
type stoppedConn struct {
	net.Conn
	stopped *atomic.Bool
}

func (c stoppedConn) Write(p []byte) (int, error) {
	for c.stopped.Load() {
		time.Sleep(time.Millisecond)
	}
	return c.Conn.Write(p)
}
