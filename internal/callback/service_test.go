package callback_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestCachedPolicyCostsOneRoundTrip(t *testing.T) {
	f := newFixture(t, options{})
	for range 3 {
		f.accept(f.request(wire.BotItem, helloBody))
	}
	f.checkCalls("channel deliver deliver deliver")
}

func TestReopenedChannelUsesItsNewProfile(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	if receipt := f.accept(f.request(wire.BotItem, hangupBody)); receipt.Commands[0].Decision != "allowed" {
		t.Errorf("first profile: %+v", receipt)
	}
	first := f.store.delivered[0].Epoch
	client, err := rueidis.NewClient(f.engine.ClientOption())
	testkit.Must(t, err)
	defer client.Close()
	testkit.Must(t, client.Do(t.Context(), client.B().Flushall().Build()).Error())
	f.channel = f.open(channelID, `{}`)
	if receipt := f.accept(f.request(wire.BotItem, hangupBody)); receipt.Commands[0].Decision != "denied" {
		t.Errorf("second profile, which allows nothing: %+v", receipt)
	}
	f.checkCalls("channel deliver deliver channel deliver")
	if last := f.store.delivered[2].Epoch; last == first || last == "" {
		t.Errorf("delivered for epoch %q, before %q", last, first)
	}
	f.store.deliver = always(callback.DeliverResult{Status: callback.Stale}, nil)
	if _, err := f.service.Accept(t.Context(), f.request(wire.BotItem, helloBody)); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("channel that changes during each attempt: %v", err)
	}
}

func TestLostReplyIsRetriedWithSameCallbackID(t *testing.T) {
	f := newFixture(t, options{})
	f.store.deliver = func(next func() (callback.DeliverResult, error)) (callback.DeliverResult, error) {
		f.store.deliver = nil
		if _, err := next(); err != nil {
			t.Error(err)
		}
		return callback.DeliverResult{}, errStoreDown
	}
	receipt := f.accept(f.request(wire.BotItem, helloBody))
	if d := f.store.delivered; receipt.Status != "accepted" || len(d) != 2 || d[0].CallbackID != receipt.CallbackID || d[1].CallbackID != receipt.CallbackID {
		t.Errorf("receipt %+v after deliveries %+v, want accepted after two deliveries with the same callback ID", receipt, d)
	}
	if entries := f.entries(); len(entries) != 1 {
		t.Errorf("the stream has %d entries, want 1", len(entries))
	}
}

func TestDeliveryIsRetriedOnceIfTheStoreIsDown(t *testing.T) {
	for want, failure := range map[int]error{2: errStoreDown, 1: errors.New("script failed")} {
		f := newFixture(t, options{})
		f.store.deliver = always(callback.DeliverResult{}, failure)
		_, err := f.service.Accept(t.Context(), f.request(wire.BotItem, helloBody))
		if !errors.Is(err, failure) || len(f.store.delivered) != want {
			t.Errorf("%v after %d attempts, want %d", err, len(f.store.delivered), want)
		}
	}
}

func TestDeliveryIsNotRetriedForClosedConnection(t *testing.T) {
	f := newFixture(t, options{})
	ctx, cancel := context.WithCancel(t.Context())
	f.store.deliver = func(func() (callback.DeliverResult, error)) (callback.DeliverResult, error) {
		cancel()
		return callback.DeliverResult{}, errStoreDown
	}
	testkit.WantFault(t, "accept", testkit.ErrorOf(f.service.Accept(ctx, f.request(wire.BotItem, helloBody))), fault.ServiceUnavailable)
	f.checkCalls("channel deliver")
}

func TestReceiptListsEveryCommand(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	first, err := f.channel.Await(t.Context(), calls.AwaitOptions{}) // not answered, so that the next one is parked
	testkit.Must(t, err)
	f.request(wire.BotItem, helloBody)
	receipt := f.accept(f.request(wire.BotItem, hangupBody))
	if receipt.Status != "parked" || receipt.Messages != 0 || len(receipt.Commands) != 3 {
		t.Fatalf("receipt %+v, want status parked, no messages and 3 commands", receipt)
	}
	if w := receipt.WaitsFor; w == nil || w.WorkItemID != first.ID || !w.Deadline.Equal(first.ExpiresAt) {
		t.Errorf("waits for %+v, want the first work item, %+v", w, first)
	}
	want := []string{"hangup allowed ", "transfer denied type_not_allowed", "made_up denied unknown_action"}
	for i, c := range receipt.Commands {
		testkit.Equal(t, fmt.Sprintf("command %d", i), c.Type+" "+c.Decision+" "+c.Reason, want[i])
	}
	testkit.Equal(t, "unknown types are counted times as other", f.metric("telapi_commands_total", "denied", "other").GetCounter().GetValue(), 1)
}

func TestEntriesCarryTrace(t *testing.T) {
	for given, want := range map[string]string{"": "tx-channel", "tx-request": "tx-request"} {
		f := newFixture(t, options{profile: profileJSON})
		r := f.request(wire.BotItem, hangupBody)
		r.Trace = wire.Trace{TraceID: "trace", ParentSpanID: "span", TransactionID: given}
		f.accept(r)
		entries := f.entries()
		if len(entries) != 3 {
			t.Fatalf("%d entries, want 3: %+v", len(entries), entries)
		}
		trace := wire.Trace{TraceID: "trace", ParentSpanID: "span", CallID: "sip-call", TransactionID: want}
		for _, e := range entries {
			if e.Trace != trace || e.Source != wire.SourceBot || !strings.HasPrefix(e.CallbackID, "cb_") || e.ChannelID != channelID || e.At == 0 || e.WorkItemID == "" {
				t.Errorf("entry %+v, want trace %+v, source bot, channel %s, and a time, callback ID and work item ID", e, trace, channelID)
			}
		}
		headers := entries[0].Command.Command.(*wire.Hangup).HangupSIPHeaders
		if !slices.Contains(headers, wire.NameValue{Name: wire.TransactionHeader, Value: want}) {
			t.Errorf("SIP headers of the hangup: %v, want %s: %s", headers, wire.TransactionHeader, want)
		}
	}
}

func TestBodyDigestIgnoresWhiteSpace(t *testing.T) {
	f := newFixture(t, options{})
	send := func(kind wire.WorkItemKind, body string) callback.DeliverParams {
		t.Helper()
		f.accept(f.request(kind, body))
		return f.store.delivered[len(f.store.delivered)-1]
	}
	a, b, c := send(wire.LLMItem, `{"content":"x","n":1}`), send(wire.LLMItem, "{ \"content\": \"x\",\n\"n\":1}"), send(wire.LLMItem, `{"content":"y","n":1}`)
	if a.BodyDigest != b.BodyDigest || a.BodyDigest == c.BodyDigest || len(a.BodyDigest) != 64 {
		t.Errorf("digests %s, %s, %s", a.BodyDigest, b.BodyDigest, c.BodyDigest)
	}
	send(wire.ToolItem, `[1,2]`)
	if last := f.entries(); last[len(last)-1].Source != wire.SourceTool || string(last[len(last)-1].Result) != "[1,2]" {
		t.Errorf("entry of a tool: %+v", last[len(last)-1])
	}
}

func TestDuplicateWindowDependsOnRoute(t *testing.T) {
	f := newFixture(t, options{})
	for _, c := range []struct {
		kind wire.WorkItemKind
		body string
		want time.Duration
	}{
		{wire.BotItem, helloBody, 0},
		{wire.BotItem, strings.Replace(helloBody, `"content"`, `"messageId":7,"content"`, 1), 24 * time.Hour},
		{wire.LLMItem, `{"content":"x"}`, 10 * time.Minute},
		{wire.ToolItem, `[1,2]`, 10 * time.Minute},
		{wire.ToolItem, `{"error":{"code":"x","message":"y"}}`, 10 * time.Minute},
	} {
		f.accept(f.request(c.kind, c.body))
		testkit.Equal(t, fmt.Sprintf("%s: an equal body is a duplicate for", c.body), f.store.delivered[len(f.store.delivered)-1].DuplicateFor, c.want)
	}
}

func TestLatencyIsMeasuredFromTheRequest(t *testing.T) {
	f := newFixture(t, options{})
	first, second, third := f.request(wire.BotItem, helloBody), f.request(wire.BotItem, helloBody), f.request(wire.BotItem, helloBody)
	f.now = f.now.Add(3 * time.Second)
	f.accept(first)
	f.accept(third)                                                 // parked
	if _, err := f.service.Accept(t.Context(), first); err == nil { // a duplicate is not measured
		t.Error("second callback with the same token was accepted")
	}
	if h := f.metric("telapi_callback_seconds", "bot").GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 6 {
		t.Errorf("%d callbacks took %v s, want 2 and 6 s", h.GetSampleCount(), h.GetSampleSum())
	}
	f.accept(second)
}

func TestUnclaimedSessionIsOfferedAgain(t *testing.T) {
	f := newFixture(t, options{})
	for _, offer := range []string{"", "first", "second"} {
		f.store.deliver = always(callback.DeliverResult{Status: callback.Routed, Offer: []byte(offer)}, nil)
		f.accept(f.request(wire.BotItem, helloBody))
	}
	testkit.Equal(t, "offers", f.offers, []string{"first", "second"})
}

func TestSpanHasTeamAndDecisions(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	recorder := tracetest.NewSpanRecorder()
	ctx, span := trace.NewTracerProvider(trace.WithSpanProcessor(recorder)).Tracer("").Start(t.Context(), "callback")
	_, err := f.service.Accept(ctx, f.request(wire.BotItem, hangupBody))
	testkit.Must(t, err)
	span.End()
	spans := recorder.Ended()
	recorded := spans[len(spans)-1]
	text := fmt.Sprint(recorded.Attributes())
	for _, e := range recorded.Events() {
		text += fmt.Sprint(e.Attributes)
	}
	testkit.Contains(t, "attributes", text, "team", "hangup", "c1", "allowed", "transfer", "denied", "type_not_allowed")
}

// A team whose profiles are large loses its own policies, not those of others.
func TestTeamsShareTheMemoryForPolicies(t *testing.T) {
	f := newFixture(t, options{})
	answer := func(c *calls.Channel) {
		t.Helper()
		f.accept(f.requestOn(c, calls.AwaitOptions{}, helloBody))
	}
	other := f.openOf("other", "other", "")
	answer(other)
	f.store.profile = []byte(`{"unknown":"` + strings.Repeat("a", 1<<20) + `"}`)
	first := f.open("first", "")
	answer(first)
	for n := range callback.PolicyShare / (4 << 20) {
		answer(f.open(fmt.Sprint("call-", n), ""))
	}
	f.store.calls = nil
	answer(other)
	answer(first)
	f.checkCalls("deliver channel deliver")
}

// The runtime waits for an entry of each work item.
func TestEmptyBodyAppendsAnEntry(t *testing.T) {
	f := newFixture(t, options{})
	receipt := f.accept(f.request(wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}}}`))
	list := f.entries()
	if len(list) != 1 || list[0].Kind != wire.KindBotEvent || list[0].Event != wire.EventEmpty || list[0].WorkItemID == "" {
		t.Errorf("entries %+v, want one bot_event empty with the work item", list)
	}
	if receipt.Messages != 0 || len(receipt.Commands) != 0 {
		t.Errorf("receipt %+v, want no messages and no commands", receipt)
	}
}

func TestErrorWithConversationIsRouted(t *testing.T) {
	f := newFixture(t, options{})
	for i, kind := range wire.WorkItemKinds {
		f.accept(f.request(kind, `{"conversation":{"identifier":{"id":"call-1"}},"error":{"code":"a","message":"b"}}`))
		if list := f.entries(); len(list) != i+1 || list[i].Kind != wire.KindProviderError || string(list[i].Error) != `{"code":"a","message":"b"}` {
			t.Errorf("%s: entries %+v, want one more provider_error", kind, list)
		}
	}
}

func TestRejectedBodyDoesNotConsumeTheCredential(t *testing.T) {
	f := newFixture(t, options{})
	for _, body := range []string{
		`{"conversation":{"identifier":{"id":"call-1"}},"actions":{"type":"transfer","target":""}}`,
		`{"conversation":{"identifier":{"id":"call-1"}},"actions":{"type":"hangup","botOperationResult":""}}`,
		`{"conversation":{"identifier":{"id":"call-2"}},"error":{"code":"a","message":"b"}}`,
		`{"conversation":{"identifier":{"id":"call-1"}},"error":"down"}`,
	} {
		before := len(f.entries())
		r := f.request(wire.BotItem, body)
		testkit.WantFault(t, body, testkit.ErrorOf(f.service.Accept(t.Context(), r)), fault.Validation)
		testkit.Equal(t, fmt.Sprintf("%s: entries after the rejected body", body), len(f.entries()), before)
		r.Body = []byte(helloBody)
		f.accept(r)
	}
}

func TestReceiptListsIgnoredMembers(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	receipt := f.accept(f.request(wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}},"error":{},"actions":[{"type":"hangup","why":1,"hangupReason":"done","reason":"other"},{"type":"hangup"}]}`))
	if len(receipt.Commands) != 2 || !slices.Equal(receipt.Commands[0].Ignored, []string{"why", "reason"}) || receipt.Commands[1].Ignored != nil {
		t.Errorf("commands %+v, want why and reason as the only ignored members", receipt.Commands)
	}
	if !slices.Equal(receipt.Ignored, []string{"/error"}) {
		t.Errorf("ignored %v, want /error, and the members of a command only with it", receipt.Ignored)
	}

	members := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf(`,"%d%s":1`, i, strings.Repeat("x", 300))
		}
		return text
	}
	command := `{"type":"hangup"` + members(60) + `}`
	receipt = f.accept(f.request(wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}}`+members(200)+`,"actions":[`+command+","+command+`]}`))
	stored, err := json.Marshal(&receipt)
	if n := []int{len(receipt.Ignored), len(receipt.Commands[0].Ignored), len(receipt.Commands[1].Ignored)}; err != nil || !slices.Equal(n, []int{100, 60, 40}) || len(stored) > 64<<10 {
		t.Errorf("%d bytes with %d ignored members of the body and of two commands (%v), want 100 of the body and of all commands, in at most 64 KiB", len(stored), n, err)
	}
}
