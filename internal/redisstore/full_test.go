package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// A full store rejects what adds data and keeps what it has acknowledged. Removing data
// works, and so does everything that is needed for it.
func TestFullStoreKeepsAcknowledgedDataAndRecovers(t *testing.T) {
	t.Parallel()
	for engine, start := range map[string]func(t *testing.T) (opts Options, settle func()){
		"embedded": func(t *testing.T) (Options, func()) {
			e, err := StartEmbedded(EmbeddedOptions{DataDir: t.TempDir(), MaxBytes: 8 << 20}, (&testkit.Buffer{}).Logger())
			testkit.Must(t, err)
			t.Cleanup(e.Close)
			return e.Options(nil), e.engine.settle
		},
		"redis": func(t *testing.T) (Options, func()) {
			return redisOptions(testkit.StartRedis(t, testkit.RedisArgs("--maxmemory", "16mb", "--maxmemory-policy", "noeviction"))), func() {}
		},
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			opts, settle := start(t)
			d := newCallbackFixture(t, opts, func(l *wire.ChannelLimits) { l.BacklogBytes = 1 << 30 })
			d.attach("browser")
			first := d.await(calls.AwaitOptions{Kind: wire.BotItem, TTL: time.Hour})
			rejected := d.fill(settle)
			d.checkFull(d.delivery(first, "answer"))
			again := calls.AwaitOptions{Kind: wire.BotItem, TTL: time.Hour, WorkItemID: first.ID, Token: first.Token}
			testkit.NoError(t, "await an item again in a full store", testkit.ErrorOf(d.Await(t.Context(), again)))

			events, position := d.receive(d.Channel, fmt.Sprint(rejected-1))
			if len(events) != rejected+1 { // and the event of the connection
				t.Errorf("the runtime received %d entries, want the %d that were acknowledged", len(events), rejected+1)
			}
			testkit.NoError(t, "commit in a full store", d.Commit(t.Context(), position))
			testkit.Until(t, "space after a commit", func() bool { return d.largeFrame(rejected) == channel.Appended })
			testkit.Until(t, "the store is not full", func() bool { return !d.store.Full() })
			if status, _ := d.deliver(d.delivery(first, "answer")); status != "routed" {
				t.Errorf("callback after the store was full: %s, want routed", status)
			}

			d.fill(settle)
			token, lost := d.claimToken(), "99999999999999-1"
			testkit.Equal(t, "released claim in a full store", d.script("revoke", token)[0], token)
			testkit.Equal(t, "check in a full store", d.script("check_claim", "", token, "", d.field(kv.MetaKey(d.id), "epoch"), lost, "", "", "")[0], "kept")
			testkit.Equal(t, "claim token after a loss", d.claimToken(), "")
			call := wire.Open{Request: wire.Request{Channel: d.id}, Team: "team", Endpoint: "endpoint"}
			testkit.NoError(t, "open an existing channel in a full store", testkit.ErrorOf(d.runtime("next").Open(t.Context(), calls.Claim{}, call)))
			testkit.NoError(t, "end a channel in a full store", d.channels.EndChannel(t.Context(), d.id, "test"))
		})
	}
}

// Extending the TTLs of a channel's keys must not make a full store accept what adds data.
func TestFullStoreRejectsWorkItemsWhenKeysAreExtended(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	d := newCallbackFixture(t, redisOptions(r), nil)
	d.await(calls.AwaitOptions{})
	waiting := d.await(calls.AwaitOptions{})
	flow := d.flow()
	flow[0] = "0" // from now on, activity extends them
	d.do("HSET", kv.MetaKey(d.id), "flow", strings.Join(flow, " "))
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	testkit.WantError(t, "await in a full store", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{})), calls.ErrFull)
	if result, err := d.callbacks.Deliver(t.Context(), d.delivery(waiting, "answer")); !kv.IsFull(err) {
		t.Errorf("callback in a full store: %s, %v, want it rejected", result.Status, err)
	}
	r.MustDo("CONFIG", "SET", "maxmemory", "0")
	d.expect(waiting, "answer", callback.Parked)
	if d.flow()[0] == "0" {
		t.Error("the callback has not extended the TTLs")
	}
}

// fill appends frames until the store is full, even after it has settled, and returns the
// number of the rejected frame.
func (d *callbackFixture) fill(settle func()) int {
	d.channelFixture.Helper()
	for n, settled := 0, false; n < 2000; {
		switch outcome := d.largeFrame(n); {
		case outcome == channel.Appended, outcome == channel.Duplicate:
			n, settled = n+1, false
		case outcome == channel.Backpressure && !settled:
			settle()
			settled = true
		case outcome == channel.Backpressure:
			return n
		default:
			d.Fatalf("frame %d: %s", n, outcome)
		}
	}
	d.Fatal("the store accepts any number of frames")
	return 0
}

func (d *callbackFixture) largeFrame(n int) channel.Outcome {
	d.channelFixture.Helper()
	entry := fmt.Sprintf(`{"kind":"frame","channelId":%q,"at":1,"event":"%d","text":%q}`, d.id, n, strings.Repeat("x", 30<<10))
	return d.append("browser", channel.Frame{MessageID: fmt.Sprint("frame", n), Entry: []byte(entry)})[0]
}

// checkFull checks what a full store rejects and what it accepts.
func (d *callbackFixture) checkFull(answer callback.DeliverParams) {
	d.channelFixture.Helper()
	ctx := d.Context()
	other := newChannelFixture(d.channelFixture.T, d.store.opts, nil)
	_, attach := d.channels.Attach(ctx, other.attachment("other"))
	_, deliver := d.callbacks.Deliver(ctx, answer)
	for name, err := range map[string]error{"new session": attach, "callback": deliver, "report": NewReportStream(d.store).Append(ctx, bytes.Repeat([]byte("x"), 1<<20))} {
		if f := fault.From(err); f.Code != fault.ServiceUnavailable || f.RetryAfter == 0 || !strings.Contains(f.Message, "full") || !kv.IsFull(err) {
			d.Errorf("%s in a full store: %v, want SERVICE_UNAVAILABLE with Retry-After", name, err)
		}
	}
	testkit.WantError(d, "send in a full store", d.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{}`)}), calls.ErrFull)
	_, lease := d.store.Grant(ctx, "client", 1, 10, time.Minute)
	saved, limits := d.store.SaveLimits(ctx, nil, []byte(`{}`))
	if limits == nil && !saved {
		limits = errors.New("not saved")
	}
	claimedBy, epoch := d.field(kv.MetaKey(d.id), "claimedBy"), d.field(kv.MetaKey(d.id), "epoch")
	testkit.Equal(d, "renewal of a claim in a full store", d.script("claim", claimedBy, d.claimToken(), "60000", "renew", "", "", "", "", epoch, "")[0], "claimed")
	_, _, keep := d.runtime("r").KeepConnections(ctx, calls.Lifetime{ConnectionID: "connection", Left: time.Minute})
	_, renew := d.channels.Renew(ctx, d.owner("browser"), time.Hour, false)
	_, _, since := d.channels.Since(ctx, d.id, channel.Cursor{})
	for name, err := range map[string]error{"ping": d.store.Ping(ctx), "rate limit": lease, "lifetimes of connections": keep, "lower limits": limits, "renewal": renew, "history": since} {
		testkit.NoError(d, fmt.Sprintf("%s in a full store", name), err)
	}
	if !d.store.Full() {
		d.Error("the store is not reported as full")
	}
}

// settle measures all changed keys. On a slow machine, one tick may measure some of them only.
func (e *engine) settle() {
	for e.tick(); len(e.memory.due()) > 0; {
		e.tick()
	}
}

// The engine counts at least what it needs, and after a tick not much more.
func TestMemoryIsCounted(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		e, c := newTestEngine(t)
		r := rand.New(rand.NewPCG(seed, 2))
		for range 300 {
			c.do(randomCommand(r)...)
			c.err = nil
			if r.IntN(50) == 0 {
				e.tick()
			}
		}
		counted := e.memory.used
		e.memory.swept = time.Time{}
		e.settle()
		want := 0
		for _, key := range e.Keys() {
			size, _ := c.do("MEMORY", "USAGE", key).(int)
			want += size + 2*len(key) + keyOverhead
		}
		// MEMORY USAGE visits the consumers of a stream in random order, on which it depends
		// whether it counts the 24 bytes of an empty slice again.
		least := want - 100
		if e.memory.used < least || e.memory.used > want+want/4 || counted < least {
			t.Errorf("seed %d: counted %d bytes, after a tick %d, want %d or a little more", seed, counted, e.memory.used, want)
		}
		c.do("FLUSHALL")
		e.memory.swept = time.Time{}
		if e.settle(); e.memory.used != 0 {
			t.Errorf("seed %d: %d bytes in an empty engine", seed, e.memory.used)
		}
		e.Close()
	}
}

// A script that a full engine rejects changes nothing, and one that removes something
// first runs to its end.
func TestFullEngineRunsScriptsWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	e, err := startEngine("secret", 1000)
	testkit.Must(t, err)
	t.Cleanup(e.Close)
	c := newConsole(e.server, nil)
	c.do("AUTH", "secret")
	c.do("SET", "large", strings.Repeat("x", 1000))
	for _, test := range []struct {
		command  []string
		rejected bool
	}{
		{[]string{"SET", "k", "v"}, true},
		{[]string{"GET", "k"}, false},
		{[]string{"EVAL", "redis.call('PUBLISH', 'c', 'm') redis.call('SET', 'k', 'v') return 1", "0"}, true},
		{[]string{"EVAL", "redis.pcall('SET', 'k', 'v') redis.call('SET', 'k2', 'v') return 1", "0"}, true},
		{[]string{"EVAL", "redis.call('DEL', 'k') redis.pcall('COPY', 'large', 'k3') redis.call('SET', 'k4', 'v') return redis.call('GET', 'k4')", "0"}, false},
		{[]string{"EVAL", "return redis.call('GET', 'k4')", "0"}, false},
		{[]string{"DEL", "large", "k3"}, false},
	} {
		c.err = nil
		reply := c.do(test.command...)
		if rejected := c.err != nil && c.err.Error() == errorFull; rejected != test.rejected {
			t.Errorf("%q: %v, %v, want it rejected: %t", test.command, reply, c.err, test.rejected)
		}
	}
	if keys := e.Keys(); strings.Join(keys, " ") != "k4" {
		t.Errorf("keys %q, want only k4", keys)
	}
	e.settle()
	if c.err = nil; c.do("SET", "k", "v") == nil {
		t.Errorf("SET after the large key was deleted: %v", c.err)
	}
}
