package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// newChatFixture returns a channel with a browser, and a runtime that has accepted it with awaitChat.
func newChatFixture(t *testing.T, opts Options, awaitChat string) *callbackFixture {
	t.Helper()
	d := newCallbackFixture(t, opts, nil)
	d.attach("a")
	d.accept(awaitChat)
	return d
}

// accept claims the channel again, with the token that it has.
func (d *callbackFixture) accept(awaitChat string) {
	d.channelFixture.Helper()
	testkit.Equal(d, "claim", d.script("claim", "r", d.claimToken(), "60000", "accept", "", awaitChat)[0], "claimed")
}

// chatFrame returns a chat frame and its work item.
func (d *callbackFixture) chatFrame(id string) (channel.Frame, calls.WorkItem) {
	item := calls.WorkItem{ID: id, Kind: wire.BotItem, Token: "cbt_" + id}
	digest := sha256.Sum256([]byte(item.Token))
	return channel.Frame{MessageID: id, Chat: true, Entry: d.entry(wire.KindFrame, id), Item: hex.EncodeToString(digest[:])}, item
}

func (d *callbackFixture) chat(id string, want channel.Outcome) calls.WorkItem {
	d.channelFixture.Helper()
	f, item := d.chatFrame(id)
	testkit.Equal(d, "frame "+id, d.append("a", f)[0], want)
	return item
}

// expectItems compares the IDs of the open work items.
func (d *callbackFixture) expectItems(want string) {
	d.channelFixture.Helper()
	items, err := d.WorkItems(d.Context())
	testkit.Must(d, err)
	var ids []string
	for _, item := range items {
		ids = append(ids, item.WorkItemID)
	}
	testkit.Equal(d, "work items", strings.Join(ids, " "), want)
}

// newestEntry returns the newest entry of the runtime stream.
func (d *callbackFixture) newestEntry() string {
	d.channelFixture.Helper()
	list := d.stream(kv.RuntimeStreamKey(d.id))
	return list[len(list)-1].FieldValues["entry"]
}

// chatItems registers work items with chat frames, and with no other ones.
func chatItems(t *testing.T, opts Options) {
	d := newChatFixture(t, opts, "bot 60000")
	first := d.chat("first", channel.Appended)
	items, err := d.WorkItems(t.Context())
	testkit.Must(t, err)
	if len(items) != 1 || items[0].Kind != wire.BotItem || items[0].Scope != wire.ScopeItem || time.Until(time.UnixMilli(items[0].Deadline)).Round(30*time.Second) != time.Minute {
		t.Fatalf("work items %+v, want one of a bot with a deadline in a minute", items)
	}
	f, _ := d.chatFrame("first")
	testkit.Equal(t, "entry", d.newestEntry(),
		fmt.Sprintf(`{"item":{"workItemId":"first","workItemKind":"bot","deadline":%d,"digest":"%s"},%s`, items[0].Deadline, f.Item[:8], f.Entry[1:]))
	observed, err := d.runtime("observer").Entries(t.Context(), d.id, "", 10)
	testkit.Must(t, err)
	testkit.Equal(t, "entry for observers", string(observed[len(observed)-1].JSON), string(f.Entry))
	following, err := d.runtime("observer").Observe(d.id, observed[len(observed)-2].Position).Receive(t.Context())
	testkit.Must(t, err)
	testkit.Equal(t, "entry for an observer that follows", string(following.JSON), string(f.Entry))
	d.chat("first", channel.Duplicate)
	d.expectFrame("a", "other", channel.Appended) // not a chat frame
	testkit.Equal(t, "entry", d.newestEntry(), string(d.entry(wire.KindFrame, "other")))
	d.expectItems("first")

	// They have one order with those of the runtime.
	explicit := d.await(calls.AwaitOptions{WorkItemID: "explicit"})
	second, _ := d.chatFrame("second")
	third, thirdItem := d.chatFrame("third")
	d.append("a", second, channel.Frame{MessageID: "between", Entry: d.entry(wire.KindFrame, "between")}, third)
	d.expectItems("first explicit second third")
	d.expect(thirdItem, "of third", callback.Parked)
	d.expect(explicit, "of explicit", callback.Parked)
	d.expect(first, "of first", callback.Routed)
	d.expect(first, "other", callback.Consumed)
	testkit.Must(t, d.Cancel(t.Context(), "second"))
	d.expectEvents("connected first other second between third of first of explicit of third")

	// The runtime gets the same item, unless it wants one of another kind.
	fourth := d.chat("fourth", channel.Appended)
	again := d.await(calls.AwaitOptions{WorkItemID: "fourth", Token: fourth.Token, TTL: time.Hour})
	if time.Until(again.ExpiresAt) > time.Minute {
		t.Errorf("awaited again until %v", again.ExpiresAt)
	}
	testkit.WantError(t, "await of another kind", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{WorkItemID: "fourth", Token: fourth.Token, Kind: wire.LLMItem})), calls.ErrWorkItemExists)

	// It can also be first, after a loss.
	fifth := d.await(calls.AwaitOptions{WorkItemID: "fifth", Token: "cbt_fifth"})
	d.chat("fifth", channel.Appended)
	testkit.Equal(t, "entry", d.newestEntry(), string(d.entry(wire.KindFrame, "fifth")))
	d.expectItems("fourth fifth")
	d.expect(fourth, "of fourth", callback.Routed)
	d.expect(fifth, "of fifth", callback.Routed)

	d.append("a", channel.Frame{MessageID: "off", Switch: wire.DisableTextChat, Entry: d.entry(wire.KindFrame, "off")})
	d.chat("disabled", channel.ChatDisabled)
	d.expectItems("")
}

func chatItemTimeouts(t *testing.T, opts Options) {
	d := newChatFixture(t, opts, "llm 50")
	traced, _ := d.chatFrame("traced")
	traced.Item += `,"trace":{"traceId":"4bf92f3577b34da6a3ce929d0e0e4736"}`
	plain, _ := d.chatFrame("plain")
	d.append("a", traced, plain)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	deadlines := map[string]int64{}
	for _, e := range d.stream(kv.RuntimeStreamKey(d.id)) {
		var frame struct {
			Item wire.OpenWorkItem `json:"item"`
		}
		testkit.Must(t, json.Unmarshal([]byte(e.FieldValues["entry"]), &frame))
		deadlines[frame.Item.WorkItemID] = frame.Item.Deadline
	}
	for range 3 { // before the timeouts
		testkit.Must(t, testkit.ErrorOf(d.Receive(ctx)))
	}
	for _, want := range []wire.Entry{{WorkItemID: "traced", Trace: wire.Trace{TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}}, {WorkItemID: "plain"}} {
		want.Kind, want.ChannelID, want.WorkItemKind, want.At = wire.KindTimeout, d.id, wire.LLMItem, deadlines[want.WorkItemID]
		got, err := d.Receive(ctx) // it has got the deadline with the entries
		if err != nil || fmt.Sprint(got.Entry) != fmt.Sprint(want) {
			t.Errorf("received %+v, %v; want %+v", got.Entry, err, want)
		}
	}
	d.expectItems("")
}

// maxChatItems is MAX_CHAT_ITEMS of the scripts.
const maxChatItems = 900

func boundedChatItems(t *testing.T, opts Options) {
	d := newChatFixture(t, opts, "bot 60000")
	d.setField("queue", fmt.Sprintf("1 %d 0", maxChatItems-1))
	d.chat("last", channel.Appended)
	d.chat("one more", channel.Backpressure)
	d.expectItems("last")
	d.expectFrame("a", "not a chat frame", channel.Appended)
	d.await(calls.AwaitOptions{WorkItemID: "known", Token: "cbt_known"}) // whatever the browser sends
	testkit.Must(t, d.Cancel(t.Context(), "last"))                       // the others are settled

	// Fields that are not needed are looked for with every 16th item, too.
	d.setField("queue", "15 14 0")
	d.setField("seen", "100")
	d.setField("search", "0 100000")
	d.chat("15th", channel.Appended)
	testkit.Equal(t, "fields that were looked at before", d.field(kv.MetaKey(d.id), "search"), "0 100000")
	f16, _ := d.chatFrame("16th")
	f17, _ := d.chatFrame("17th")
	d.append("a", f16, f17)
	if cursor := d.field(kv.MetaKey(d.id), "search"); cursor == "0 100000" {
		t.Error("nothing is forgotten")
	}
}

// awaitedByClaims makes claims of all kinds. Those of another runtime have no work items.
func awaitedByClaims(t *testing.T, opts Options) {
	d := newChatFixture(t, opts, "tool 60000")
	frames := 0
	expect := func(name, want string) {
		t.Helper()
		frames++
		d.chat(fmt.Sprint("frame", frames), channel.Appended)
		testkit.Equal(t, name+": entry with an item", strings.HasPrefix(d.newestEntry(), `{"item":`), want != "")
		testkit.Equal(t, name, d.field(kv.MetaKey(d.id), "awaitChat"), want)
	}
	r := d.runtime("r")
	ctx, epoch := t.Context(), d.field(kv.MetaKey(d.id), "epoch")
	expect("accepted", "tool 60000")
	testkit.Equal(t, "renewal", d.script("claim", "r", d.claimToken(), "60000", "renew", "", "", "", "", epoch, "")[0], "claimed")
	expect("renewed", "tool 60000")
	resumed, err := r.Resume(ctx, calls.Claim{}, d.id, "", "team")
	testkit.Must(t, err)
	expect("resumed", "tool 60000")

	// The store may have lost the claim, and have another one again.
	d.do("HSET", kv.MetaKey(d.id), "awaitChat", "llm 1", "claimToken", "", "lostToken", d.claimToken())
	recovered, err := r.Recover(ctx, calls.Claim{}, resumed)
	testkit.Must(t, err)
	expect("recovered", "tool 60000")
	d.setField("awaitChat", "")
	recovered, err = r.Recover(ctx, calls.Claim{}, recovered)
	testkit.Must(t, err)
	expect("recovered twice", "tool 60000")

	// The instance has found that, and the runtime connects to another one before the claim is recovered.
	d.do("HSET", kv.MetaKey(d.id), "awaitChat", "llm 1", "claimedBy", "older", "claimToken", "older", "claimRequestedAt", "1")
	testkit.WantError(t, "check", recovered.CheckLoss(ctx), calls.ErrLost)
	testkit.Must(t, testkit.ErrorOf(r.Resume(ctx, calls.Claim{}, d.id, "", "")))
	expect("resumed after an older claim", "tool 60000")

	d.setField("claimUntil", fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli()))
	frames++
	d.chat("expired", channel.Appended)
	testkit.Equal(t, "entry after the claim has expired", d.newestEntry(), string(d.entry(wire.KindFrame, "expired")))

	for name, claim := range map[string]func() error{
		"attached": func() error { return testkit.ErrorOf(r.Attach(ctx, calls.Claim{}, d.id)) },
		"opened": func() error {
			return testkit.ErrorOf(r.Open(ctx, calls.Claim{}, wire.Open{Request: wire.Request{Channel: d.id}, Team: "team", Endpoint: "endpoint"}))
		},
		"accepted without items": func() error { d.accept(""); return nil },
		"released": func() error {
			d.script("claim", "r", d.claimToken(), "0", "renew", "", "", "", "", epoch, "")
			d.setField("claimUntil", "99999999999999") // the store's clock is set back
			return nil
		},
		"revoked": func() error {
			d.script("revoke", d.claimToken())
			d.setField("claimUntil", "99999999999999")
			return nil
		},
	} {
		d.accept("tool 60000")
		expect("accepted again", "tool 60000")
		testkit.Must(t, claim())
		expect(name, "")
	}
	d.accept("bot 60000")
	expect("accepted at last", "bot 60000")
}
