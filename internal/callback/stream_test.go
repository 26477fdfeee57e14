package callback_test

import (
	"context"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// streamFor awaits a work item and opens a stream with its answer. The interruption of the
// stream is sent to interrupted.
func (f *fixture) streamFor(kind wire.WorkItemKind) (st *callback.Stream, request callback.Request, interrupted chan error) {
	f.Helper()
	request, interrupted = f.request(kind, ""), make(chan error, 10)
	st = f.service.OpenStream(callback.StreamRequest{Credential: request.Credential, MediaType: callback.NDJSON, Interrupt: func(err error) { interrupted <- err }})
	f.Cleanup(st.Close)
	testkit.Must(f, st.Check(f.Context()))
	return st, request, interrupted
}

func TestStreamIsInterruptedByNotices(t *testing.T) {
	for name, c := range map[string]struct {
		notices func(f *fixture, workItemID string)
		want    fault.Code // empty: the stream goes on
	}{
		"cancelled": {func(f *fixture, id string) { f.service.StreamNotices().Message(channelID + " " + id) }, fault.CallbackConsumed},
		"ended":     {func(f *fixture, _ string) { f.service.StreamNotices().Message(channelID) }, fault.ConversationEnded},
		"others": {func(f *fixture, id string) {
			f.service.StreamNotices().Message("other " + id)
			f.service.StreamNotices().Message(channelID + " other")
			f.service.StreamNotices().Message("other")
		}, ""},
		"missed cancellation": {func(f *fixture, id string) {
			f.service.StreamNotices().Down(nil)
			testkit.Must(f, f.channel.Cancel(f.Context(), id))
			f.service.StreamNotices().Up()
		}, fault.CallbackConsumed},
		"missed end": {func(f *fixture, _ string) {
			f.service.StreamNotices().Down(nil)
			testkit.Must(f, f.channel.End(f.Context(), "done"))
			f.service.StreamNotices().Up()
		}, fault.ConversationEnded},
		"nothing missed": {func(f *fixture, _ string) {
			f.service.StreamNotices().Down(nil)
			f.service.StreamNotices().Up()
		}, ""},
		"no notice missed": {func(f *fixture, id string) {
			f.service.StreamNotices().Down(nil)
			f.service.StreamNotices().Up()
			f.service.Close() // waits for the check
			testkit.Must(f, f.channel.Cancel(f.Context(), id))
			f.service.StreamNotices().Up()
		}, ""},
		"missed cancellation with the store down": {func(f *fixture, id string) {
			f.service.StreamNotices().Down(nil)
			testkit.Must(f, f.channel.Cancel(f.Context(), id))
			f.store.checkErr = errStoreDown
			f.service.StreamNotices().Up()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, options{})
			st, request, interrupted := f.streamFor(wire.LLMItem)
			c.notices(f, request.WorkItemID)
			f.service.Close() // waits for checks
			select {
			case err := <-interrupted:
				if fault.From(err).Code != c.want {
					t.Errorf("interrupted with %v, want %q", err, c.want)
				}
			default:
				if c.want != "" {
					t.Errorf("not interrupted, want %s", c.want)
				}
			}
			st.Close()
			f.service.StreamNotices().Message(channelID)
			if len(interrupted) > 0 {
				t.Error("a closed stream was interrupted")
			}
		})
	}
}

func TestStreamCountsPartsAndOpenStreams(t *testing.T) {
	f := newFixture(t, options{})
	st, request, _ := f.streamFor(wire.LLMItem)
	second := f.repeat(request)
	testkit.Equal(t, "open streams", f.metric("telapi_callback_streams").GetGauge().GetValue(), 2)
	second.Close()
	testkit.Equal(t, "open streams after one was closed", f.metric("telapi_callback_streams").GetGauge().GetValue(), 1)
	if receipt, err := st.Write(context.Background(), []byte("{\"delta\":\"One. Two. T\"}\n")); err != nil || receipt != nil {
		t.Errorf("receipt %v, %v before the end", receipt, err)
	}
	receipt, err := st.Write(context.Background(), []byte("{\"done\":true}\n"))
	if err != nil || receipt == nil || receipt.Parts != 3 || receipt.Status != "accepted" {
		t.Errorf("receipt %+v, %v, want 3 parts", receipt, err)
	}
	st.Close()
	if open, parts := f.metric("telapi_callback_streams").GetGauge().GetValue(), f.metric("telapi_callback_parts_total", "llm").GetCounter().GetValue(); open != 0 || parts != 3 {
		t.Errorf("%v open streams and %v parts, want 0 and 3", open, parts)
	}
	testkit.Equal(t, "channels with open streams", f.service.StreamChannels(), 0)
	if len(f.entries()) != 4 {
		t.Errorf("entries %+v, want 3 parts and the result", f.entries())
	}
}

// A provider that repeats an answer learns that it was accepted, even if the work item's
// deadline passes meanwhile.
func TestSettledStreamOutlivesDeadline(t *testing.T) {
	f := newFixture(t, options{})
	first, request, _ := f.streamFor(wire.LLMItem)
	deadline := first.Deadline
	second := f.repeat(request)
	f.finish(second, nil)
	testkit.WantFault(t, "stream that another one settled", first.Expired(t.Context()), fault.ServiceUnavailable)
	third := f.repeat(request)
	if !third.Deadline.After(deadline.Add(time.Minute)) {
		t.Errorf("deadline of a repetition: %v, want later than %v", third.Deadline, deadline)
	}
	f.finish(third, wantDuplicate)
}

// repeat opens another stream with the same credential.
func (f *fixture) repeat(r callback.Request) *callback.Stream {
	f.Helper()
	st := f.service.OpenStream(callback.StreamRequest{Credential: r.Credential, MediaType: callback.NDJSON, Interrupt: func(error) {}})
	f.Cleanup(st.Close)
	testkit.Must(f, st.Check(f.Context()))
	return st
}

func TestBodyAfterABrokenStreamIsChecked(t *testing.T) {
	f := newFixture(t, options{})
	st, r, _ := f.streamFor(wire.LLMItem)
	testkit.Must(t, testkit.ErrorOf(st.Write(t.Context(), []byte("{\"delta\":\"One. Two\"}\n"))))
	for body, want := range map[string]fault.Code{`{"content":`: fault.MalformedJSON, `{"contnt":"x"}`: fault.Validation, `{"content":"x"}`: fault.CallbackConsumed} {
		r.Body = []byte(body)
		testkit.WantFault(t, body, testkit.ErrorOf(f.service.Accept(t.Context(), r)), want)
	}
}

func wantDuplicate(err error) bool { return fault.Is(err, fault.CallbackConsumed) }

// finish sends a whole answer.
func (f *fixture) finish(st *callback.Stream, want func(error) bool) {
	f.Helper()
	_, err := st.Write(f.Context(), []byte("{\"delta\":\"Hello.\"}\n{\"done\":true}\n"))
	if want == nil && err != nil || want != nil && !want(err) {
		f.Errorf("whole answer: %v", err)
	}
}

// The store checks the credential of an answer that is complete at once.
func TestWholeStreamNeedsNoCheck(t *testing.T) {
	f := newFixture(t, options{})
	valid := f.request(wire.LLMItem, "").Credential
	wrong := valid
	wrong.Digest = "made-up"
	for name, c := range map[string]struct {
		credential callback.Credential
		body       string
		want       fault.Code
	}{
		"wrong token":                {wrong, "{\"delta\":\"Hello.\"}\n{\"done\":true}\n", fault.CallbackToken},
		"wrong token and body":       {wrong, "{delta}\n", fault.CallbackToken},
		"wrong token and unfinished": {wrong, "{\"delta\":\"Hel", fault.CallbackToken},
		"no token":                   {callback.Credential{ChannelID: channelID, Kind: wire.LLMItem, WorkItemID: valid.WorkItemID}, "{\"done\":true}\n", fault.CallbackToken},
		"invalid body":               {valid, "{delta}\n", fault.MalformedJSON},
		"valid":                      {valid, "{\"delta\":\"Hello.\"}\n{\"done\":true}\n", ""},
	} {
		st := f.service.OpenStream(callback.StreamRequest{Credential: c.credential, MediaType: callback.NDJSON, Interrupt: func(error) {}})
		receipt, err := st.Write(t.Context(), []byte(c.body))
		if c.want == "" && (err != nil || receipt == nil || receipt.Parts != 1) || c.want != "" && !fault.Is(err, c.want) {
			t.Errorf("%s: receipt %+v, %v, want %q", name, receipt, err, c.want)
		}
		st.Close()
	}
	testkit.Equal(t, "entries", len(f.entries()), 2)
}
