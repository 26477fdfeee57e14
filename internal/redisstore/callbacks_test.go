package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// callbackTests run on every engine.
var callbackTests = map[string]func(*testing.T, Options){
	"credential checks":                                   credentialChecks,
	"streamed answers":                                    streamedAnswers,
	"work items are bounded":                              boundedWorkItems,
	"settled work items are forgotten":                    settledWorkItems,
	"all parts of a streamed answer arrive at once":       mostParts,
	"callbacks are routed in the order of work items":     callbackOrder,
	"work items time out":                                 workItemTimeouts,
	"cancelled work items are skipped":                    cancellations,
	"one of several concurrent duplicates is routed":      concurrentCallbacks,
	"parked callbacks are routed before the channel ends": endWithParked,
	"retried callbacks have the same outcome":             retriedCallbacks,
	"callbacks wait for the end of a stream":              parkedBehindStream,
	"callbacks can be retried after backpressure":         callbackBackpressure,
	"channel credentials can be used repeatedly":          channelCredentials,
	"digests are kept for an hour, tokens never":          retention,
	"callbacks reset the idle timeout":                    callbacksResetIdleTimeout,
	"a commit travels with a work item":                   commitWithWorkItem,
	"chat frames have work items":                         chatItems,
	"work items of chat frames time out":                  chatItemTimeouts,
	"work items of chat frames are bounded":               boundedChatItems,
	"claims decide on work items of chat frames":          awaitedByClaims,
}

// callbackFixture is a channel with a runtime that awaits work items.
type callbackFixture struct {
	*channelFixture
	*calls.Channel
	callbacks *Callbacks
	epoch     string
}

func newCallbackFixture(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *callbackFixture {
	t.Helper()
	s := newChannelFixture(t, opts, change)
	c, err := s.runtime("r").Open(t.Context(), calls.Claim{}, wire.Open{Request: wire.Request{Channel: s.id}, Team: "team", Endpoint: "endpoint", CallID: "call",
		TransactionID: "transaction", Profile: []byte(`{"commandSources":["bot"]}`)})
	testkit.Must(t, err)
	d := &callbackFixture{s, c, NewCallbacks(s.store), ""}
	known, err := d.callbacks.Channel(t.Context(), s.id)
	if err != nil || known.Epoch == "" || string(known.Profile) != string(c.Profile) || known.CallID != "call" || known.TransactionID != "transaction" {
		t.Fatalf("channel: %+v, %v, want the data of %+v", known, err, c)
	}
	d.epoch = known.Epoch
	return d
}

func (d *callbackFixture) await(o calls.AwaitOptions) calls.WorkItem {
	d.channelFixture.Helper()
	item, err := d.Await(d.Context(), o)
	testkit.Must(d, err)
	return item
}

// delivery returns a callback for a work item. Its two entries are named after the body.
func (d *callbackFixture) delivery(item calls.WorkItem, body string) callback.DeliverParams {
	digest := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	params := callback.DeliverParams{
		Credential: callback.Credential{ChannelID: d.id, Kind: item.Kind, Digest: digest(item.Token)},
		CallbackID: uuid.NewString(), BodyDigest: digest(body), DuplicateFor: 24 * time.Hour, Epoch: d.epoch,
		Entries: [][]byte{d.entry(wire.KindBotEvent, body), d.entry(wire.KindBotEvent, body+"'")}, Receipt: []byte(`{"of": "` + body + `"}`), Park: true,
	}
	if item.Kind != wire.BotItem {
		params.WorkItemID = item.ID
	}
	return params
}

func (d *callbackFixture) deliver(c callback.DeliverParams) (callback.Status, string) {
	d.channelFixture.Helper()
	o, err := d.callbacks.Deliver(d.Context(), c)
	testkit.NoError(d, "deliver", err)
	return o.Status, string(o.Receipt)
}

func (d *callbackFixture) expect(item calls.WorkItem, body string, want callback.Status) {
	d.channelFixture.Helper()
	if got, _ := d.deliver(d.delivery(item, body)); got != want {
		d.Errorf("%s: %s, want %s", body, got, want)
	}
}

// events returns the events on the runtime stream, without the second entry of each
// callback.
func (d *callbackFixture) events() string {
	d.channelFixture.Helper()
	entries, err := d.runtime("observer").Entries(d.Context(), d.id, "", 10_000)
	testkit.Must(d, err)
	var all []string
	for i, e := range entries {
		switch name := e.Entry.Event + e.Entry.Reason; {
		case e.Entry.Kind == wire.KindTimeout:
			all = append(all, "timeout:"+e.Entry.WorkItemID)
		case !strings.HasSuffix(name, "'"):
			all = append(all, name)
		case i == 0 || entries[i-1].Entry.Event+"'" != name || entries[i-1].Entry.WorkItemID != e.Entry.WorkItemID:
			d.Errorf("%s does not follow its first entry", name)
		}
	}
	return strings.Join(all, " ")
}

// expectEvents compares the events on the runtime stream.
func (d *callbackFixture) expectEvents(want string) {
	d.channelFixture.Helper()
	testkit.Equal(d, "events on the runtime stream", d.events(), want)
}

// forgottenAt returns when a use of a channel credential is forgotten.
func (d *callbackFixture) forgottenAt(use string) time.Time {
	d.channelFixture.Helper()
	return time.UnixMilli(parseMillis(strings.Fields(d.field(kv.MetaKey(d.id), use))[1]))
}

// forgetUse changes the time at which a use of a channel credential is forgotten to one that has passed.
func (d *callbackFixture) forgetUse(use string) {
	d.channelFixture.Helper()
	words := strings.SplitN(d.field(kv.MetaKey(d.id), use), " ", 3)
	d.do("HSET", kv.MetaKey(d.id), use, words[0]+" 1 "+words[2])
}

// expectNothingParked checks that the size of parked callbacks is 0, and that no parts are kept.
func (d *callbackFixture) expectNothingParked() {
	d.channelFixture.Helper()
	if queue := d.field(kv.MetaKey(d.id), "queue"); !strings.HasSuffix(queue, " 0") {
		d.Errorf("queue: %s, want 0 parked bytes at the end", queue)
	}
	reply := d.do("HKEYS", kv.MetaKey(d.id))
	fields, err := reply.AsStrSlice()
	testkit.Must(d, err)
	for _, field := range fields {
		if regexp.MustCompile(`^\d+\+`).MatchString(field) {
			d.Errorf("part %s is kept", field)
		}
	}
}

// expectPending checks which of the channel's work items are awaited or parked.
// want[n] is for item n.
func (d *callbackFixture) expectPending(want ...bool) {
	d.channelFixture.Helper()
	items := make([]callback.ParkedItem, len(want))
	for n := range items {
		items[n] = callback.ParkedItem{ChannelID: d.id, Number: int64(n)}
	}
	if got, err := d.callbacks.StillParked(d.Context(), items); err != nil || !slices.Equal(got, want) {
		d.Errorf("pending items: %v, %v, want %v", got, err, want)
	}
}

func credentialChecks(t *testing.T, opts Options) {
	d, other := newCallbackFixture(t, opts, nil), newCallbackFixture(t, opts, nil)
	cases := []struct {
		name    string
		kind    wire.WorkItemKind
		prepare func(*callback.DeliverParams, calls.WorkItem)
		want    callback.Status
	}{
		{"bot", wire.BotItem, nil, callback.Routed},
		{"LLM", wire.LLMItem, nil, callback.Routed},
		{"tool", wire.ToolItem, nil, callback.Routed},
		{"unknown digest", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Digest = strings.Repeat("0", 64) }, callback.Invalid},
		{"empty digest", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Digest = "" }, callback.Invalid},
		{"name of another hash field", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) { c.Digest = "@" + i.ID }, callback.Invalid},
		{"other channel", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.ChannelID = other.id }, callback.Invalid},
		{"unknown channel", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.ChannelID = uuid.NewString() }, callback.Invalid},
		{"other kind", wire.LLMItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Kind = wire.ToolItem }, callback.Invalid},
		{"LLM credential on the bot path", wire.LLMItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Kind, c.WorkItemID = wire.BotItem, "" }, callback.Invalid},
		{"other work item", wire.ToolItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.WorkItemID = "other" }, callback.Invalid},
		{"consumed", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) { d.expect(i, "first", callback.Routed) }, callback.Consumed},
		{"consumed with the same body", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) {
			d.expect(i, "consumed with the same body", callback.Routed)
			c.DuplicateFor = 0
		}, callback.Duplicate},
		{"cancelled", wire.LLMItem, func(_ *callback.DeliverParams, i calls.WorkItem) {
			if err := d.Cancel(t.Context(), i.ID); err != nil {
				t.Error(err)
			}
		}, callback.Cancelled},
		{"other epoch", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Epoch = other.epoch }, callback.Stale},
	}
	for _, c := range cases {
		item := d.await(calls.AwaitOptions{Kind: c.kind})
		delivery := d.delivery(item, c.name)
		if c.prepare != nil {
			c.prepare(&delivery, item)
		}
		got, receipt := d.deliver(delivery)
		if first := strings.Contains(receipt, "of"); got != c.want || first != (got == callback.Routed || got == callback.Consumed || got == callback.Duplicate) {
			t.Errorf("%s: %s, receipt %s, want %s", c.name, got, receipt, c.want)
		}
		_ = d.Cancel(t.Context(), item.ID) // so that the next item is not parked
	}
	expiring := d.await(calls.AwaitOptions{TTL: shortTTL})
	d.waitExpired(expiring)
	d.expect(expiring, "late", callback.Invalid)

	used, cancelled, open := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	if state, err := d.callbacks.CheckCredential(t.Context(), d.delivery(used, "").Credential); state.Status != callback.Usable || err != nil {
		t.Errorf("unused credential: %s, %v, want %s", state.Status, err, callback.Usable)
	}
	d.expect(used, "used", callback.Routed)
	testkit.Must(t, errors.Join(d.Cancel(t.Context(), cancelled.ID), d.End(t.Context(), "done")))
	for _, item := range []calls.WorkItem{used, cancelled, open} {
		d.expect(item, "used", callback.Ended)
	}
	d.expect(expiring, "late", callback.Invalid)
	testkit.WantError(t, "await on an ended channel", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{})), calls.ErrEnded)
	testkit.WantError(t, "unknown channel", testkit.ErrorOf(d.callbacks.Channel(t.Context(), uuid.NewString())), callback.ErrChannelNotFound)
}

// The runtime is notified of every change of a work item, and of the next timeout unless it
// looks for itself before.
func TestWorkItemChangesNotifyRuntime(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	notices := d.recordNotices(kv.RuntimeTopic(d.id))
	late := d.await(calls.AwaitOptions{TTL: time.Minute})
	d.expect(late, "late", callback.Routed)
	soon := calls.AwaitOptions{TTL: 19 * time.Second}
	a, b, c, e := d.await(soon), d.await(soon), d.await(soon), d.await(soon)
	shared := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
	d.expect(shared, "shared", callback.Routed)
	d.expect(a, "a", callback.Routed)
	d.expect(c, "c", callback.Parked)
	d.expect(b, "b", callback.Routed)
	d.expect(e, "e", callback.Routed)
	cancelled, expiring := d.await(soon), d.await(calls.AwaitOptions{TTL: shortTTL})
	d.waitExpired(expiring)
	testkit.Must(t, d.Cancel(t.Context(), cancelled.ID))
	want := []string{
		"E0-0 2-time ",                                       // late
		"Dwait",                                              // a is the first to be awaited
		"E2-time 4-time wait",                                // shared; a is still awaited
		"E4-time 6-time wait",                                // a; b is awaited next
		"E6-time 10-time wait", "E10-time 12-time ", "Dwait", // b and c; e; cancelled is awaited
		"E12-time 13-time ", // cancelled is cancelled; expiring has timed out
	}
	testkit.Equal(t, "notices", notices(), want)
}

func TestCredentialBelongsToOneWorkItem(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	first := calls.AwaitOptions{WorkItemID: "first", Token: calls.NewToken()}
	d.await(first)
	d.await(first) // again
	testkit.WantError(t, "second work item with the same credential", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{WorkItemID: "second", Token: first.Token})), calls.ErrWorkItemExists)
	testkit.Must(t, d.Cancel(t.Context(), d.await(calls.AwaitOptions{}).ID))
	if items, err := d.WorkItems(t.Context()); err != nil || len(items) != 1 || items[0].WorkItemID != "first" {
		t.Errorf("open items: %+v, %v; want the first", items, err)
	}
}

// The instances that receive streamed answers are notified of those that end.
func TestEndsAndCancellationsNotifyInstances(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	notices := d.recordNotices(kv.StreamsTopic)
	item := d.await(calls.AwaitOptions{})
	testkit.Must(t, d.Cancel(t.Context(), item.ID))
	testkit.Must(t, d.End(t.Context(), "done"))
	testkit.Equal(t, "notices", notices(), []string{d.id + " " + item.ID, d.id})
}

// recordNotices records the notices on a topic. The returned function stops
// recording and returns the notices with times masked.
func (d *callbackFixture) recordNotices(topic string) func() []string {
	d.channelFixture.Helper()
	const last = "last"
	var notices []string
	subscribed, received := make(chan struct{}), make(chan struct{})
	d.raw(func(_ context.Context, client rueidis.Client) error {
		conn, release := client.Dedicate()
		d.Cleanup(release)
		conn.SetPubSubHooks(rueidis.PubSubHooks{
			OnSubscription: func(rueidis.PubSubSubscription) { close(subscribed) },
			OnMessage: func(m rueidis.PubSubMessage) {
				if m.Message == last {
					close(received)
					return
				}
				notices = append(notices, m.Message)
			},
		})
		return conn.Do(d.Context(), conn.B().Subscribe().Channel(topic).Build()).Error()
	})
	<-subscribed
	return func() []string {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Publish().Channel(topic).Message(last).Build()).Error()
		})
		<-received
		for i, notice := range notices {
			notice, _, _ = strings.Cut(notice, "\n") // without the entries
			notice = regexp.MustCompile(`\d{13}`).ReplaceAllString(notice, "time")
			notices[i] = regexp.MustCompile(`(^D| )\d+$`).ReplaceAllString(notice, "${1}wait")
		}
		return notices
	}
}

// Check scripts run as read-only scripts here, in which Redis rejects writes. The
// embedded engine is not tested: its read-only scripts have no clock.
func TestCheckScriptsAreReadOnly(t *testing.T) {
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	d.attach("a")
	item := d.delivery(d.await(calls.AwaitOptions{TTL: time.Hour}), "")
	d.setIdle(25 * time.Hour) // a script that changes a channel would end it now
	for _, name := range []string{"check_credential", "check_connect"} {
		d.store.scripts[name] = rueidis.NewLuaScriptReadOnly(kv.Script(name))
	}
	if state, err := d.callbacks.CheckCredential(t.Context(), item.Credential); state.Status == callback.Usable || err != nil {
		t.Errorf("credential of an idle channel: %s, %v, want it to be rejected", state.Status, err)
	}
	testkit.WantFault(t, "connection to an idle channel", d.channels.CheckAttach(t.Context(), d.attachment("b")), fault.SessionEnded)
}
