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

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// The server stops for longer than an operation waits, and then runs the commands
// that it received before.
func TestFailedCallsHaveNoEffectLater(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	d := newCallbackFixture(t, redisOptions(redis), nil)
	item := d.await(calls.AwaitOptions{})
	d.attach("live")

	redis.Freeze()
	testkit.WantFault(t, "attach to a stopped server", testkit.ErrorOf(d.channels.Attach(t.Context(), d.attachment("late"))), fault.ServiceUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	testkit.WantError(t, "await on a stopped server", testkit.ErrorOf(d.Await(ctx, calls.AwaitOptions{WorkItemID: "late", Token: calls.NewToken()})), context.DeadlineExceeded)
	sending, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	testkit.WantError(t, "send on a stopped server", d.Send(sending, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"late"}`)}), context.DeadlineExceeded)
	redis.Thaw()

	testkit.Until(t, "the server answers", func() bool { return d.store.Ping(t.Context()) == nil })
	d.expectFrame("live", "1", channel.Appended)
	d.await(calls.AwaitOptions{WorkItemID: "next"}) // on the runtime's connection: after its late calls
	items, err := d.WorkItems(t.Context())
	if err != nil || len(items) != 2 || items[0].WorkItemID == "late" || items[1].WorkItemID == "late" {
		t.Errorf("open items: %+v, %v; want %s and next", items, err, item.ID)
	}
	if got := d.attach("other"); got.Head.ID != "" {
		t.Errorf("a message was sent late: %s", got.Head.ID)
	}
}

// hookedConn calls its functions before a write and after a read. If received returns
// false, the data is lost and the connection ends.
type hookedConn struct {
	net.Conn
	sending  func()
	received func(data []byte) bool
}

func (c hookedConn) Write(p []byte) (int, error) {
	if c.sending != nil {
		c.sending()
	}
	return c.Conn.Write(p)
}

func (c hookedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.received != nil && !c.received(p[:n]) {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// dial makes a runtime use hooked connections.
func (c hookedConn) dial(o *calls.Options) {
	o.Store.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (_ net.Conn, err error) {
		conn := c
		conn.Conn, err = dialer.DialContext(ctx, "tcp", addr)
		return conn, err
	}
}

// The item is registered, but all replies are lost until the caller times out. The
// answers to later items do not wait for it.
func TestAwaitWithLostRepliesBlocksNothing(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	silent := &atomic.Bool{}
	runtime := d.runtime("r", hookedConn{received: func(data []byte) bool { return !silent.Load() || !bytes.Contains(data, []byte("awaited")) }}.dial)
	c, err := runtime.Attach(t.Context(), calls.Claim{}, d.id)
	testkit.Must(t, err)
	silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Await(ctx, calls.AwaitOptions{WorkItemID: "unknown", TTL: time.Hour}); err == nil {
		t.Fatal("await succeeded although its replies were lost")
	}
	silent.Store(false)
	next, err := c.Await(t.Context(), calls.AwaitOptions{TTL: time.Hour})
	testkit.Must(t, err)
	if status, _ := d.deliver(d.delivery(next, "answer")); status != callback.Routed && status != callback.Parked {
		t.Fatalf("answer: %s, want %s or %s", status, callback.Routed, callback.Parked)
	}
	testkit.Until(t, "the answer is routed", func() bool { return strings.Contains(d.events(), "answer") })
}

// Another runtime has claimed the channel while this one was suspended for longer than
// its lease, by its own clock too.
// A failover can undo a later claim. A request of the former one that waits for the store must not
// take effect then: nobody would know its work item, which would delay the answers to later ones.
func TestRequestsOfEndedClaimAreNotRepeated(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	r := s.runtime("r", func(o *calls.Options) { o.MinReplicas = 1 }) // there is no replica
	former, err := r.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	result := make(chan error, 1)
	go func() {
		result <- testkit.ErrorOf(former.Await(context.Background(), calls.AwaitOptions{Token: calls.NewToken()}))
	}()
	former.Abandon()
	testkit.WantError(t, "the request", <-result, calls.ErrUnavailable)
}

func TestReceiveIsFenced(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(redis), nil)
	s.attach("a")
	frozen := &atomic.Bool{}
	const lease = 500 * time.Millisecond
	stop := hookedConn{sending: func() {
		for frozen.Load() {
			time.Sleep(time.Millisecond)
		}
	}}
	suspended := s.runtime("suspended", stop.dial, func(o *calls.Options) { o.Lease = lease })
	c, err := suspended.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	s.receive(c, "connected")
	frozen.Store(true)
	s.frame("a", "1")
	testkit.Until(t, "the claim expires", func() bool {
		_, err := s.runtime("successor").Attach(t.Context(), calls.Claim{}, s.id)
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
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	slow := &atomic.Bool{}
	slow.Store(true)
	delay := hookedConn{received: func([]byte) bool {
		if slow.Load() {
			time.Sleep(500 * time.Millisecond)
		}
		return true
	}}
	later := s.runtime("r", delay.dial)
	slow.Store(false)
	s.attachRuntime("r")
	testkit.Must(t, testkit.ErrorOf(later.Attach(t.Context(), calls.Claim{}, s.id)))
}

// An instance with an imprecise clock does not take a claim for older than its own that is
// newer.
func TestNewerClaimIsKeptAfterImpreciseClock(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	slow := &atomic.Bool{}
	slow.Store(true)
	delay := hookedConn{sending: func() {
		if slow.Load() {
			time.Sleep(500 * time.Millisecond)
		}
	}}
	imprecise, precise := s.runtime("r", delay.dial), s.runtime("r")
	slow.Store(false)
	earlier, err := imprecise.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	later, err := precise.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	passed := time.Now().Add(time.Second)
	testkit.Until(t, "the store's clock has passed all estimates", func() bool { return time.Now().After(passed) })
	testkit.Must(t, earlier.CheckLoss(t.Context()))
	testkit.Must(t, later.Commit(t.Context(), ""))
}

// An operation fails at its caller's deadline. Operations of other callers on the
// same connection continue.
func TestCallerDeadlineEndsOnlyItsOwnOperation(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	r.Freeze()
	other := make(chan error, 1)
	go func() { other <- s.Announce(t.Context(), "topic") }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Grant(ctx, "key", 1, 1, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("operation with a short deadline: got %v, want a deadline error", err)
	}
	select {
	case err := <-other:
		t.Errorf("operation without a deadline ended as well: %v", err)
	default:
	}
	r.Thaw()
	testkit.NoError(t, "operation without a deadline", <-other)
}

func TestCloseEndsLeases(t *testing.T) {
	t.Parallel()
	s, _ := connect(t, redisOptions(testkit.StartRedis(t)))
	leaseCtx, release, held, err := NewLeases(s).Try(t.Context(), uuid.NewString())
	if err != nil || !held {
		t.Fatalf("lease not acquired: held %v, %v", held, err)
	}
	s.Close()
	if leaseCtx.Err() == nil {
		t.Error("lease context is not cancelled after Close")
	}
	release()
	if s.tasks.Go(t.Context(), func(context.Context) {}) == nil {
		t.Error("a closed store started a goroutine")
	}
}

// A runtime can claim a channel before it has compared its clock with that of the store.
func claimWithoutClock(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	claim := func(token, held string) {
		t.Helper()
		reply := s.script("claim", "r", token, "60000", "attach", "")
		requestedAt := time.UnixMilli(parseMillis(s.field(kv.MetaKey(s.id), "claimRequestedAt")))
		if reply[0] != "claimed" || reply[len(reply)-1] != held || time.Since(requestedAt).Abs() > time.Hour {
			t.Errorf("claim: %q, requested at %s; want it to end with the held message %q, and to be requested now", reply, requestedAt, held)
		}
	}
	s.script("send", "", "-", "", "", "1", "{}")
	claim("first", "")
	claim("second", s.hold("2"))
}
