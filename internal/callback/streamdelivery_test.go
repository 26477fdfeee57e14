package callback_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// send writes the pieces of a stream until it ends. It returns the receipt's status or the error's
// code, and counts an error.
func (f *fixture) send(st *callback.Stream, pieces ...string) (outcome string) {
	f.Helper()
	defer st.Close()
	var receipt *callback.Receipt
	var err error
	for i := 0; err == nil && receipt == nil && i <= len(pieces); i++ {
		if i < len(pieces) {
			receipt, err = st.Write(f.Context(), []byte(pieces[i]))
		} else {
			receipt, err = st.End(f.Context())
		}
	}
	if err != nil {
		return string(fault.From(st.Fail(err)).Code)
	}
	return receipt.Status
}

func TestStreamedAnswerIsDelivered(t *testing.T) {
	const delta, end = "{\"delta\":\"One. Two\"}\n", "{\"done\":true}\n"
	whole, lines := []string{delta + end}, []string{delta, end}
	down := func(f *fixture, _ callback.Request) { f.store.deliver = always(callback.DeliverResult{}, errStoreDown) }
	cancel := func(f *fixture, r callback.Request) { f.cancel(r.WorkItemID) }
	begin := func(text string) func(*fixture, callback.Request) {
		return func(f *fixture, r callback.Request) {
			_, err := f.repeat(r).Write(f.Context(), fmt.Appendf(nil, "{\"delta\":%q}\n", text))
			testkit.Must(f, err)
		}
	}
	for name, tt := range map[string]struct {
		pieces  []string
		await   calls.AwaitOptions // default: an answer of a language model
		prepare func(*fixture, callback.Request)
		want    string // as returned by send
		calls   string // of the store
		entries string
	}{
		"whole":                             {pieces: whole, want: "accepted", calls: "channel stream", entries: "llm_part 1|llm_part 2|llm_result 0"},
		"lines":                             {pieces: lines, want: "accepted", calls: "check channel stream stream", entries: "llm_part 1|llm_part 2|llm_result 0"},
		"last line alone":                   {pieces: []string{end}, want: "accepted", calls: "channel stream", entries: "llm_result 0"},
		"bytes of a line":                   {pieces: []string{delta[:5], delta[5:9], delta[9:] + end}, want: "accepted", calls: "check channel stream", entries: "llm_part 1|llm_part 2|llm_result 0"},
		"last line without line break":      {pieces: []string{delta, strings.TrimSpace(end)}, want: "accepted", calls: "check channel stream stream", entries: "llm_part 1|llm_part 2|llm_result 0"},
		"bot":                               {pieces: lines, await: calls.AwaitOptions{Kind: wire.BotItem}, want: "accepted", calls: "check channel stream stream", entries: "bot_message 1|bot_message 2|bot_event 0"},
		"no last line":                      {pieces: []string{delta}, want: "MALFORMED_JSON", calls: "check channel stream", entries: "llm_part 1"},
		"invalid line":                      {pieces: []string{"{}\n"}, want: "VALIDATION_ERROR", calls: "check channel"},
		"too long":                          {pieces: []string{strings.Repeat(" ", callback.MaxStreamBytes+1)}, want: "PAYLOAD_TOO_LARGE", calls: "check channel"},
		"token of a channel":                {pieces: lines, await: calls.AwaitOptions{Scope: wire.ScopeChannel}, want: "VALIDATION_ERROR", calls: "check channel"},
		"whole with the token of a channel": {pieces: whole, await: calls.AwaitOptions{Scope: wire.ScopeChannel}, want: "VALIDATION_ERROR", calls: "channel stream check"},
		"cancelled":                         {pieces: lines, prepare: cancel, want: "CALLBACK_CONSUMED", calls: "check"},
		"whole and cancelled":               {pieces: whole, prepare: cancel, want: "CALLBACK_CONSUMED", calls: "channel stream"},
		"same answer has begun":             {pieces: lines, prepare: begin("One. Two"), want: "accepted", calls: "check channel stream check stream stream", entries: "llm_part 1|llm_part 2|llm_result 0"},
		"another answer has begun":          {pieces: whole, prepare: begin("Another. Two"), want: "CALLBACK_CONSUMED", calls: "check channel stream stream", entries: "llm_part 1"},
		"store is down":                     {pieces: whole, prepare: down, want: "SERVICE_UNAVAILABLE", calls: "channel stream stream"},
		"store is down before the check":    {pieces: lines, prepare: func(f *fixture, _ callback.Request) { f.store.checkErr = errStoreDown }, want: "SERVICE_UNAVAILABLE", calls: "check"},
		"channel is opened again all the time": {pieces: whole, prepare: func(f *fixture, _ callback.Request) {
			f.store.deliver = always(callback.DeliverResult{Status: callback.Stale}, nil)
		}, want: "SERVICE_UNAVAILABLE", calls: "channel stream channel stream"},
		"store lost parts": {pieces: whole, prepare: func(f *fixture, _ callback.Request) {
			f.store.deliver = always(callback.DeliverResult{Status: callback.Missing}, nil)
		}, want: "SERVICE_UNAVAILABLE", calls: "channel stream"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, options{})
			if tt.await == (calls.AwaitOptions{}) {
				tt.await.Kind = wire.LLMItem
			}
			r := f.requestOn(f.channel, tt.await, "")
			if tt.prepare != nil {
				tt.prepare(f, r)
			}
			outcome := f.send(f.service.OpenStream(callback.StreamRequest{Credential: r.Credential, MediaType: callback.NDJSON}), tt.pieces...)
			testkit.Equal(t, "outcome", outcome, tt.want)
			f.checkCalls(tt.calls)
			var entries []string
			for _, e := range f.entries() {
				entries = append(entries, fmt.Sprintf("%s %d", e.Kind, e.Part))
			}
			testkit.Equal(t, "entries", strings.Join(entries, "|"), tt.entries)
			testkit.Equal(t, "telapi_callbacks_total", f.metric("telapi_callbacks_total", string(r.Kind), outcome).GetCounter().GetValue(), 1)
		})
	}
}

func TestStreamIsCheckedOnce(t *testing.T) {
	f := newFixture(t, options{})
	r := f.request(wire.LLMItem, "").Credential
	r.Digest = "unknown"
	st := f.service.OpenStream(callback.StreamRequest{Credential: r, MediaType: callback.NDJSON})
	for range 2 {
		testkit.WantFault(t, "unknown token", st.Check(t.Context()), fault.CallbackToken)
	}
	testkit.WantFault(t, "whole answer after the check", testkit.ErrorOf(st.Write(t.Context(), []byte("{\"done\":true}\n"))), fault.CallbackToken)
	f.checkCalls("check")
	testkit.WantFault(t, "expired token", st.Expired(t.Context()), fault.CallbackToken)
	testkit.WantError(t, "error of the request", st.Fail(context.Canceled), context.Canceled)
	testkit.Equal(t, "open streams", f.metric("telapi_callback_streams").GetGauge().GetValue(), 0)
	testkit.Equal(t, "disconnected providers", f.metric("telapi_callbacks_total", "llm", "gone").GetCounter().GetValue(), 1)
}

func TestStreamTellsTheStoreWhatCameBefore(t *testing.T) {
	f := newFixture(t, options{})
	r := f.request(wire.LLMItem, "")
	trace := wire.Trace{TraceID: "trace", CallID: "call", TransactionID: "tx"}
	st := f.service.OpenStream(callback.StreamRequest{Credential: r.Credential, MediaType: callback.NDJSON, Trace: trace})
	f.now = f.now.Add(time.Minute)
	testkit.Equal(t, "outcome", f.send(st, "{\"delta\":\"One. Two. Three\"}\n", "{\"done\":true}\n"), "accepted")
	for i, want := range []string{`^\+[\w-]{16}$`, `^\+[\w-]{24}\.[0-9a-f]{64}$`} {
		if p := f.store.streamed[i]; !regexp.MustCompile(want).MatchString(p.Digests) || !strings.HasPrefix(p.Digests, f.store.streamed[0].Digests) || p.Epoch == "" || !p.Park {
			t.Errorf("delivery %d: %+v, want digests %s", i, p, want)
		}
	}
	for i, e := range f.entries() {
		want := wire.Entry{Kind: wire.KindLLMPart, ChannelID: channelID, At: f.now.UnixMilli(), Trace: trace, Source: wire.SourceLLM, CallbackID: f.store.streamed[0].CallbackID, WorkItemID: r.WorkItemID, Part: i + 1}
		if want.Text = e.Text; i == 3 {
			text := "One. Two. Three"
			want.Kind, want.Part, want.Parts, want.Content = wire.KindLLMResult, 0, 3, &text
		}
		testkit.Equal(t, fmt.Sprint("entry ", i), e, want)
	}
}

func TestStreamWaitsForEarlierWorkItems(t *testing.T) {
	f := newFixture(t, options{})
	first, second := f.request(wire.LLMItem, `{"content":"x"}`), f.request(wire.LLMItem, "")
	age := func(when string, want float64) {
		t.Helper()
		f.now = f.now.Add(time.Second)
		testkit.Equal(t, "age of the oldest parked callback "+when, f.metric("telapi_callback_oldest_parked_seconds").GetGauge().GetValue(), want)
	}
	_, err := f.repeat(second).Write(t.Context(), []byte("{\"delta\":\"One. Two\"}\n"))
	testkit.Must(t, err)
	age("before the last line", 1)
	testkit.Equal(t, "outcome", f.send(f.repeat(second), "{\"delta\":\"One. Two\"}\n{\"done\":true}"), "parked")
	age("after the last line", 2)
	f.accept(first)
	age("after the work item before it", 0)
	testkit.Equal(t, "entries", len(f.entries()), 4)
}
