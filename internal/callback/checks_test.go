package callback_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestRejectedCallbacks(t *testing.T) {
	notJSON := func(r *callback.Request) { r.Body = []byte("{") }
	longest := func(r *callback.Request) {
		const start, end = `{"content":1,"pad":"`, `"}`
		r.Body = []byte(start + strings.Repeat("a", callback.MaxUncheckedBody-len(start+end)) + end)
	}
	large := func(r *callback.Request) { // was read only after a check, so its credential's own error is known
		r.Body = []byte(`{"content":1,"pad":"` + strings.Repeat("a", callback.MaxUncheckedBody) + `"}`)
	}
	for name, tt := range map[string]struct {
		kind    wire.WorkItemKind
		prepare func(*fixture, *callback.Request)
		code    fault.Code
		calls   string // of the store
		outcome string // in telapi_callbacks_total; default: code
	}{
		"no token and a malformed body": {prepare: func(_ *fixture, r *callback.Request) { r.Digest = ""; notJSON(r) }, code: fault.CallbackToken},
		"invalid channel ID":            {prepare: func(_ *fixture, r *callback.Request) { r.ChannelID = "a{b}" }, code: fault.CallbackToken},
		"invalid work item ID":          {kind: wire.LLMItem, prepare: func(_ *fixture, r *callback.Request) { r.WorkItemID = "a b" }, code: fault.CallbackToken},
		"malformed body and unknown token": {prepare: func(_ *fixture, r *callback.Request) { r.Digest = "unknown"; notJSON(r) },
			code: fault.CallbackToken, calls: "check"},
		"malformed body and consumed token": {prepare: func(f *fixture, r *callback.Request) { f.accept(*r); notJSON(r) },
			code: fault.CallbackToken, calls: "channel deliver check"},
		"malformed body and cancelled work item": {kind: wire.LLMItem, prepare: func(f *fixture, r *callback.Request) { f.cancel(r.WorkItemID); notJSON(r) },
			code: fault.CallbackToken, calls: "check"},
		"malformed body and ended channel": {prepare: func(f *fixture, r *callback.Request) { f.end(); notJSON(r) },
			code: fault.CallbackToken, calls: "check"},
		"malformed body and valid token": {prepare: func(_ *fixture, r *callback.Request) { notJSON(r) },
			code: fault.MalformedJSON, calls: "check"},
		"malformed body and store down": {prepare: func(f *fixture, r *callback.Request) { f.store.checkErr = errStoreDown; notJSON(r) },
			code: fault.ServiceUnavailable, calls: "check"},
		"body of another channel": {prepare: func(_ *fixture, r *callback.Request) {
			r.Body = []byte(strings.ReplaceAll(helloBody, channelID, "call-2"))
		},
			code: fault.Validation, calls: "check"},
		"unknown channel": {kind: wire.LLMItem, prepare: func(_ *fixture, r *callback.Request) { r.ChannelID = "call-2" },
			code: fault.CallbackToken, calls: "channel"},
		"unknown token": {prepare: func(_ *fixture, r *callback.Request) { r.Digest = "unknown" },
			code: fault.CallbackToken, calls: "channel deliver"},
		"ended channel": {prepare: func(f *fixture, _ *callback.Request) { f.end() },
			code: fault.ConversationEnded, calls: "channel deliver"},
		"consumed token": {kind: wire.LLMItem, prepare: func(f *fixture, r *callback.Request) { f.accept(*r); r.Body = []byte(`{"content":"other"}`) },
			code: fault.CallbackConsumed, calls: "channel deliver deliver"},
		"large invalid body": {kind: wire.LLMItem, prepare: func(_ *fixture, r *callback.Request) { large(r) },
			code: fault.Validation, calls: "check"},
		"large invalid body and consumed token": {kind: wire.LLMItem, prepare: func(f *fixture, r *callback.Request) { f.accept(*r); large(r) },
			code: fault.CallbackConsumed, calls: "channel deliver check"},
		"invalid body of the longest that needs no check, and consumed token": {kind: wire.LLMItem, prepare: func(f *fixture, r *callback.Request) { f.accept(*r); longest(r) },
			code: fault.CallbackToken, calls: "channel deliver check"},
		"large invalid body and ended channel": {kind: wire.LLMItem, prepare: func(f *fixture, r *callback.Request) { f.end(); large(r) },
			code: fault.ConversationEnded, calls: "check"},
		"large invalid body and unknown token": {kind: wire.LLMItem, prepare: func(_ *fixture, r *callback.Request) { r.Digest = "unknown"; large(r) },
			code: fault.CallbackToken, calls: "check"},
		"full backlog": {prepare: func(f *fixture, _ *callback.Request) { f.fillBacklog() },
			code: fault.ServiceUnavailable, calls: "channel deliver", outcome: "BACKPRESSURE"},
		"unknown status of the store": {prepare: func(f *fixture, _ *callback.Request) {
			f.store.deliver = always(callback.DeliverResult{Status: "other"}, nil)
		},
			code: fault.Internal, calls: "channel deliver"},
		"closed connection": {prepare: func(f *fixture, _ *callback.Request) {
			f.store.deliver = always(callback.DeliverResult{}, context.Canceled)
		}, code: fault.Internal, calls: "channel deliver", outcome: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			limits := wire.DefaultChannelLimits()
			limits.BacklogEntries = 4
			f := newFixture(t, options{limits: limits})
			kind, body := wire.BotItem, helloBody
			if tt.kind != "" {
				kind, body = tt.kind, `{"content":"Hello"}`
			}
			r := f.request(kind, body)
			tt.prepare(f, &r)
			_, err := f.service.Accept(t.Context(), r)
			if got := fault.From(err); err == nil || got.Code != tt.code {
				t.Errorf("error %v, want %s", err, tt.code)
			} else if got.Code == fault.ServiceUnavailable && got.RetryAfter <= 0 {
				t.Error("SERVICE_UNAVAILABLE without Retry-After")
			}
			f.checkCalls(tt.calls)
			outcome := tt.outcome
			if outcome == "" {
				outcome = string(tt.code)
			}
			if n := f.metric("telapi_callbacks_total", string(kind), outcome).GetCounter().GetValue(); n != 1 {
				t.Errorf("telapi_callbacks_total is %v for outcome %s, want 1", n, outcome)
			}
		})
	}
}

func TestRejectHidesMalformedBodyFromInvalidTokens(t *testing.T) {
	malformed := fault.New(fault.MalformedJSON, "Incomplete.")
	for name, tt := range map[string]struct {
		problem error
		prepare func(*fixture, *callback.Credential)
		code    fault.Code
		calls   string
		outcome string
	}{
		"wrong media type without a token": {fault.New(fault.UnsupportedMedia, "Type."), func(_ *fixture, c *callback.Credential) { c.Digest = "" }, fault.UnsupportedMedia, "", "UNSUPPORTED_MEDIA_TYPE"},
		"too large without a token":        {fault.New(fault.PayloadTooLarge, "Size."), func(_ *fixture, c *callback.Credential) { c.Digest = "" }, fault.PayloadTooLarge, "", "PAYLOAD_TOO_LARGE"},
		"closed connection":                {context.Canceled, func(*fixture, *callback.Credential) {}, fault.Internal, "", "gone"},
		"incomplete without a token":       {malformed, func(_ *fixture, c *callback.Credential) { c.Digest = "" }, fault.CallbackToken, "", "CALLBACK_TOKEN_INVALID"},
		"incomplete with an unknown token": {malformed, func(_ *fixture, c *callback.Credential) { c.Digest = "unknown" }, fault.CallbackToken, "check", "CALLBACK_TOKEN_INVALID"},
		"incomplete with a valid token":    {malformed, func(*fixture, *callback.Credential) {}, fault.MalformedJSON, "check", "MALFORMED_JSON"},
		"incomplete with the store down":   {malformed, func(f *fixture, _ *callback.Credential) { f.store.checkErr = errStoreDown }, fault.ServiceUnavailable, "check", "SERVICE_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, options{})
			credential := f.request(wire.BotItem, "").Credential
			tt.prepare(f, &credential)
			if err := f.service.Reject(t.Context(), credential, tt.problem); fault.From(err).Code != tt.code {
				t.Errorf("error %v, want %s", err, tt.code)
			}
			f.checkCalls(tt.calls)
			if n := f.metric("telapi_callbacks_total", "bot", tt.outcome).GetCounter().GetValue(); n != 1 {
				t.Errorf("telapi_callbacks_total is %v for outcome %s, want 1", n, tt.outcome)
			}
		})
	}
}

func TestCheckReturnsTheErrorOfTheCredential(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*fixture, *callback.Request)
		code    fault.Code // empty: no error
		calls   string
	}{
		"usable":     {func(*fixture, *callback.Request) {}, "", "check channel"},
		"no token":   {func(_ *fixture, r *callback.Request) { r.Digest = "" }, fault.CallbackToken, ""},
		"unknown":    {func(_ *fixture, r *callback.Request) { r.Digest = "unknown" }, fault.CallbackToken, "check"},
		"ended":      {func(f *fixture, _ *callback.Request) { f.end() }, fault.ConversationEnded, "check"},
		"cancelled":  {func(f *fixture, r *callback.Request) { f.cancel(r.WorkItemID) }, fault.CallbackConsumed, "check"},
		"consumed":   {func(f *fixture, r *callback.Request) { f.accept(*r) }, "", "channel deliver check"},
		"store down": {func(f *fixture, _ *callback.Request) { f.store.checkErr = errStoreDown }, fault.ServiceUnavailable, "check"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, options{})
			r := f.request(wire.LLMItem, `{"content":"Hello"}`)
			tt.prepare(f, &r)
			teamID, err := f.service.Check(t.Context(), r.Credential)
			if err != nil && fault.From(err).Code != tt.code || (err == nil) != (tt.code == "") || (err == nil) != (teamID == "team") {
				t.Errorf("team %q, error %v, want %q", teamID, err, tt.code)
			}
			f.checkCalls(tt.calls)
			if m := f.metric("telapi_callbacks_total", "llm", string(tt.code)); tt.code != "" && m.GetCounter().GetValue() != 1 {
				t.Errorf("telapi_callbacks_total is %v for outcome %s, want 1", m, tt.code)
			}
		})
	}
}

func TestReusedTokenReportsFirstCallback(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare       func(*fixture, *callback.Request) callback.Receipt
		details, hint string
	}{
		"same body": {func(f *fixture, r *callback.Request) callback.Receipt {
			return f.accept(*r)
		}, `{"duplicate":true,"receipt":RECEIPT}`, "No action needed."},
		"members in another order": {func(f *fixture, r *callback.Request) callback.Receipt {
			r.Body = []byte(`{"content":"Hello","commands":[{"type":"hangup","reason":"x"}],"other":1}`)
			receipt := f.accept(*r)
			r.Body = []byte(` {"other":1, "commands":[{"reason":"\u0078","type":"hangup"}],"content":"Hello"}`)
			return receipt
		}, `{"duplicate":true,"receipt":RECEIPT}`, "No action needed."},
		"parked": {func(f *fixture, r *callback.Request) callback.Receipt {
			*r = f.request(wire.LLMItem, string(r.Body))
			return f.accept(*r)
		}, `{"duplicate":true,"receipt":RECEIPT}`, "No action needed."},
		"number in another form": {func(f *fixture, r *callback.Request) callback.Receipt {
			r.Body = []byte(`{"content":"Hello","other":1}`)
			f.accept(*r)
			r.Body = []byte(`{"content":"Hello","other":1.0}`)
			return callback.Receipt{}
		}, `{"duplicate":false}`, "Discard this result."},
		"another body": {func(f *fixture, r *callback.Request) callback.Receipt {
			f.accept(*r)
			r.Body = []byte(`{"content":"other"}`)
			return callback.Receipt{}
		}, `{"duplicate":false}`, "Discard this result."},
		"cancelled": {func(f *fixture, r *callback.Request) callback.Receipt {
			f.cancel(r.WorkItemID)
			return callback.Receipt{}
		}, `{"duplicate":false,"state":"cancelled"}`, "Discard the result."},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, options{})
			r := f.request(wire.LLMItem, `{"content":"Hello"}`)
			receipt, _ := json.Marshal(tt.prepare(f, &r))
			_, err := f.service.Accept(t.Context(), r)
			details, _ := json.Marshal(fault.From(err).Details)
			want := strings.Replace(tt.details, "RECEIPT", string(receipt), 1)
			if string(details) != want || !strings.HasSuffix(fault.From(err).Message, tt.hint) {
				t.Errorf("error %v with details %s, want %q with details %s", err, details, tt.hint, want)
			}
		})
	}
}

func TestInvalidProfileDeniesCommands(t *testing.T) {
	f := newFixture(t, options{profile: strings.TrimSuffix(profileJSON, "}") + `,"speech":7}`})
	if receipt := f.accept(f.request(wire.BotItem, hangupBody)); receipt.Commands[0].Decision != "denied" {
		t.Errorf("receipt %+v, want all commands denied", receipt)
	}
	testkit.Contains(t, "log", f.log.String(), "invalid gateway profile")
	f = newFixture(t, options{})
	f.accept(f.request(wire.BotItem, helloBody))
	testkit.Equal(t, "log without a profile", f.log.String(), "")
}

func always(result callback.DeliverResult, err error) func(func() (callback.DeliverResult, error)) (callback.DeliverResult, error) {
	return func(func() (callback.DeliverResult, error)) (callback.DeliverResult, error) { return result, err }
}

func (f *fixture) checkCalls(want string) {
	f.Helper()
	testkit.Equal(f, "store calls", strings.Join(f.store.calls, " "), want)
}

func (f *fixture) cancel(workItemID string) {
	f.Helper()
	testkit.Must(f, f.channel.Cancel(f.Context(), workItemID))
}

func (f *fixture) end() {
	f.Helper()
	testkit.Must(f, f.channel.End(f.Context(), "done"))
}

// fillBacklog delivers entries until the store rejects more. Its calls are not
// recorded.
func (f *fixture) fillBacklog() {
	f.Helper()
	for range 10 {
		r := f.requestOn(f.channel, calls.AwaitOptions{Scope: wire.ScopeChannel}, helloBody)
		if _, err := f.service.Accept(f.Context(), r); fault.Is(err, fault.ServiceUnavailable) {
			f.store.calls = nil
			f.useService()
			return
		}
	}
	f.Fatal("backlog is not full after 10 callbacks")
}

func TestReceiptCountsMessages(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	for _, tt := range []struct {
		kind wire.WorkItemKind
		body string
		want int
	}{
		{wire.BotItem, helloBody, 1},
		{wire.BotItem, hangupBody, 0},
		{wire.LLMItem, `{"content":"Hello"}`, 1},
		{wire.ToolItem, `{"result":{"a":1}}`, 1},
	} {
		testkit.Equal(t, fmt.Sprintf("%s %s: messages", tt.kind, tt.body), f.accept(f.request(tt.kind, tt.body)).Messages, tt.want)
	}
	for kind, want := range map[wire.WorkItemKind]int{wire.BotItem: 2, wire.LLMItem: 1} {
		st, _, _ := f.streamFor(kind)
		receipt, err := st.Write(t.Context(), []byte("{\"delta\":\"One. Two\"}\n{\"done\":true}\n"))
		testkit.Must(t, err)
		testkit.Equal(t, fmt.Sprintf("%s stream: messages", kind), receipt.Messages, want)
	}
}

// A callback that was not parked must not use up the team's share.
func TestRoutedCallbackTakesNoShare(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	f.accept(f.request(wire.BotItem, helloBody))
	f.store.deliver = func(func() (callback.DeliverResult, error)) (callback.DeliverResult, error) {
		return callback.DeliverResult{Status: callback.Parked}, errStoreDown
	}
	if _, err := f.service.Accept(t.Context(), f.request(wire.BotItem, helloBody)); !fault.Is(err, fault.ServiceUnavailable) {
		t.Fatalf("error %v, want %s", err, fault.ServiceUnavailable)
	}
	testkit.NoError(t, "the share is not free", f.service.TakeParked("team", f.service.ParkedShare()))
}

func TestDryRunReportsPathsInBody(t *testing.T) {
	f := newFixture(t, options{profile: profileJSON})
	if _, err := f.service.Try(callback.Trial{Kind: wire.BotItem, Body: []byte(`{`)}, wire.GatewayProfile{}); !fault.Is(err, fault.MalformedJSON) {
		t.Errorf("error %v, want %s", err, fault.MalformedJSON)
	}
	report, err := f.service.Try(callback.Trial{Kind: wire.BotItem, Body: []byte(strings.TrimSuffix(helloBody, "}") + `,"colour":1}`)}, wire.GatewayProfile{})
	if err != nil || len(report.Entries) != 1 || report.Entries[0].ChannelID != channelID || len(report.Warnings) != 1 || report.Warnings[0].Path != "/body/colour" {
		t.Errorf("report %+v, error %v, want an entry of %s and a warning at /body/colour", report, err, channelID)
	}
	stream := "{\"delta\":\"Hello\"}\n" + strings.TrimSuffix(helloBody, "}") + ",\"done\":true,\"colour\":1}\n"
	report, err = f.service.Try(callback.Trial{Kind: wire.BotItem, MediaType: callback.NDJSON, Body: []byte(stream)}, wire.GatewayProfile{})
	if err != nil || len(report.Entries) != 2 || report.Entries[0].ChannelID != channelID || len(report.Warnings) != 1 || report.Warnings[0].Path != "/body/colour" {
		t.Errorf("report %+v of a stream, error %v, want a part and an end of %s and a warning at /body/colour", report, err, channelID)
	}
}
