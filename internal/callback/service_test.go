package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

const (
	channelID = "call-1"
	flowJSON  = `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true}]}`
	hello     = `{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"Hello"}}}]}}`
	hangUp    = `{"conversation":{"identifier":{"id":"call-1"}},"actions":[{"type":"hangup","commandId":"c1"},{"type":"transfer","target":"tel:+49301"},{"type":"made_up"}]}`
)

// memory is a store whose word is scripted: what it was asked, in order, and
// what it answers next.
type memory struct {
	channel   Channel
	valid     bool
	checkErr  error
	deliver   []any // Status or error, one per call; the last one stays
	receipt   []byte
	asked     []string
	waiting   map[int64]bool // items by number; nil: the store is away
	delivered []DeliverParams
}

func (m *memory) Channel(context.Context, string) (Channel, error) {
	m.asked = append(m.asked, "channel")
	if m.channel.Epoch == "" {
		return Channel{}, ErrChannelNotFound
	}
	return m.channel, nil
}

func (m *memory) CheckCredential(context.Context, Credential) (bool, error) {
	m.asked = append(m.asked, "check")
	return m.valid, m.checkErr
}

func (m *memory) StillParked(_ context.Context, items []ParkedItem) ([]bool, error) {
	m.asked = append(m.asked, fmt.Sprint("waiting ", len(items)))
	waiting := make([]bool, len(items))
	for i, t := range items {
		waiting[i] = m.waiting[t.Number]
	}
	if m.waiting == nil {
		return nil, fault.Unavailable("The store", io.EOF)
	}
	return waiting, nil
}

func (m *memory) Deliver(_ context.Context, d DeliverParams) (DeliverResult, error) {
	m.asked = append(m.asked, "deliver")
	m.delivered = append(m.delivered, d)
	next := any(Routed)
	if len(m.deliver) > 0 {
		next = m.deliver[0]
		m.deliver = m.deliver[min(1, len(m.deliver)-1):]
	}
	if err, failed := next.(error); failed {
		return DeliverResult{}, err
	}
	o := DeliverResult{Status: next.(Status), Receipt: m.receipt}
	if o.Status == Parked {
		o.Number = int64(len(m.delivered))
	}
	return o, nil
}

func (m *memory) entries(t *testing.T) (list []wire.Entry) {
	t.Helper()
	for _, raw := range m.delivered[len(m.delivered)-1].Entries {
		var e wire.Entry
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func newTestService(t *testing.T, m *memory, disabled ...string) *Service {
	t.Helper()
	platform, err := command.NewPlatformPolicy(disabled, nil)
	if err != nil {
		t.Fatal(err)
	}
	return NewService(m, platform, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now)
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func request(kind wire.WorkItemKind, body string) Request {
	r := Request{Credential: Credential{ChannelID: channelID, Kind: kind, Digest: "d1"}, Body: []byte(body), Received: time.Now()}
	if kind != wire.BotItem {
		r.WorkItemID = "w1"
	}
	return r
}

func TestChecksComeInTheirOrder(t *testing.T) {
	tooLarge, wrongType := fault.New(fault.PayloadTooLarge, "Large."), fault.New(fault.UnsupportedMedia, "Type.")
	brokenOff := fault.New(fault.MalformedJSON, "Broken off.")
	for _, c := range []struct {
		name  string
		alter func(*Request, *memory)
		want  fault.Code
		asked string

		outcome string // counted, if not as the code
	}{
		{"another media type, though there is no token", func(r *Request, _ *memory) { r.Unread, r.Digest = wrongType, "" }, fault.UnsupportedMedia, "", ""},
		{"too large, though there is no token", func(r *Request, _ *memory) { r.Unread, r.Digest = tooLarge, "" }, fault.PayloadTooLarge, "", ""},
		{"no token, though the body is bad", func(r *Request, _ *memory) { r.Digest, r.Body = "", []byte("{") }, fault.CallbackToken, "", ""},
		{"a channel that cannot be", func(r *Request, _ *memory) { r.ChannelID = "a{b}" }, fault.CallbackToken, "", ""},
		{"a work item that cannot be", func(r *Request, _ *memory) { r.Kind, r.WorkItemID = wire.LLMItem, "a b" }, fault.CallbackToken, "", ""},
		{"a body that broke off, to a stranger", func(r *Request, m *memory) { r.Unread, m.valid = brokenOff, false }, fault.CallbackToken, "check", ""},
		{"a body that broke off, to a good token", func(r *Request, m *memory) { r.Unread = brokenOff }, fault.MalformedJSON, "check", ""},
		{"no JSON, to a stranger", func(r *Request, m *memory) { r.Body, m.valid = []byte("{"), false }, fault.CallbackToken, "check", ""},
		{"no JSON, to a consumed token", func(r *Request, m *memory) { r.Body, m.valid = []byte("{"), false }, fault.CallbackToken, "check", ""},
		{"no JSON, to a cancelled token", func(r *Request, m *memory) { r.Body, m.valid = []byte("{"), false }, fault.CallbackToken, "check", ""},
		{"no JSON, to an ended conversation", func(r *Request, m *memory) { r.Body, m.valid = []byte("{"), false }, fault.CallbackToken, "check", ""},
		{"no JSON, to a good token", func(r *Request, m *memory) { r.Body = []byte("{") }, fault.MalformedJSON, "check", ""},
		{"no JSON, the store away", func(r *Request, m *memory) { r.Body, m.checkErr = []byte("{"), fault.Unavailable("The store", io.EOF) }, fault.ServiceUnavailable, "check", ""},
		{"another conversation's body", func(r *Request, m *memory) { r.ChannelID = "call-2" }, fault.Validation, "check", ""},
		{"no such channel", func(_ *Request, m *memory) { m.channel = Channel{} }, fault.CallbackToken, "channel", ""},
		{"a bad token", func(_ *Request, m *memory) { m.deliver = []any{Invalid} }, fault.CallbackToken, "channel deliver", ""},
		{"an ended channel", func(_ *Request, m *memory) { m.deliver = []any{Ended} }, fault.ConversationEnded, "channel deliver", ""},
		{"a consumed token", func(_ *Request, m *memory) { m.deliver = []any{Consumed} }, fault.CallbackConsumed, "channel deliver", ""},
		{"a runtime that is behind", func(_ *Request, m *memory) { m.deliver = []any{Backpressure} }, fault.ServiceUnavailable, "channel deliver", "BACKPRESSURE"},
		{"a verdict that nobody knows", func(_ *Request, m *memory) { m.deliver = []any{Status("eh")} }, fault.Internal, "channel deliver", ""},
		{"a provider that has hung up", func(_ *Request, m *memory) { m.deliver = []any{context.Canceled} }, fault.Internal, "channel deliver", "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &memory{channel: Channel{Epoch: "e1"}, valid: true}
			s := newTestService(t, m)
			r := request(wire.BotItem, hello)
			c.alter(&r, m)
			_, err := s.Accept(t.Context(), r)
			if got := fault.From(err).Code; err == nil || got != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if got := strings.Join(m.asked, " "); got != c.asked {
				t.Errorf("asked the store: %s, want: %s", got, c.asked)
			}
			if fault.Is(err, fault.ServiceUnavailable) && fault.From(err).RetryAfter <= 0 {
				t.Error("503 does not say when to come again")
			}
			outcome := cmp.Or(c.outcome, string(c.want))
			if n := counted(t, s.metrics.callbacks.WithLabelValues(string(r.Kind), outcome)); n != 1 {
				t.Errorf("counted %v times as %s", n, outcome)
			}
		})
	}
}

func TestReusedTokensLearnWhatBecameOfTheFirstAnswer(t *testing.T) {
	for verdict, want := range map[Status]struct{ details, does string }{
		Duplicate: {`{"duplicate":true,"receipt":{"callbackId":"cb_first"}}`, "Nothing is left to do."},
		Consumed:  {`{"duplicate":false}`, "Drop this one."},
		Cancelled: {`{"duplicate":false,"state":"cancelled"}`, "Drop the result."},
	} {
		m := &memory{channel: Channel{Epoch: "e1"}, deliver: []any{verdict}, receipt: []byte(`{"callbackId":"cb_first"}`)}
		s := newTestService(t, m)
		_, err := s.Accept(t.Context(), request(wire.BotItem, hello))
		details, _ := json.Marshal(fault.From(err).Details)
		if string(details) != want.details || !strings.HasSuffix(fault.From(err).Message, want.does) {
			t.Errorf("%s: %v with details %s, want %s", verdict, err, details, want)
		}
	}
}

func TestKnownChannelCostsOneRoundTrip(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1"}}
	s := newTestService(t, m)
	for range 3 {
		if _, err := s.Accept(t.Context(), request(wire.BotItem, hello)); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(m.asked, " "); got != "channel deliver deliver deliver" {
		t.Errorf("asked the store: %s", got)
	}
}

func TestChannelOpenedAnewIsDecidedByItsOwnProfile(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1", Profile: []byte(flowJSON)}}
	s := newTestService(t, m)
	decision := func() string {
		t.Helper()
		answer, err := s.Accept(t.Context(), request(wire.BotItem, hangUp))
		if err != nil {
			t.Fatal(err)
		}
		return answer.Commands[0].Decision
	}
	if d := decision(); d != "allowed" {
		t.Errorf("under the first profile: %s", d)
	}
	m.channel = Channel{Epoch: "e2"}
	m.deliver = []any{Stale, Routed}
	if d := decision(); d != "denied" {
		t.Errorf("under the second, which permits nothing: %s", d)
	}
	if last := m.delivered[len(m.delivered)-1]; last.Epoch != "e2" {
		t.Errorf("decided for %s", last.Epoch)
	}
	m.deliver = []any{Stale}
	if _, err := s.Accept(t.Context(), request(wire.BotItem, hello)); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("a channel that keeps changing: %v", err)
	}
}

func TestLostAnswerIsAskedForUnderTheSameName(t *testing.T) {
	away := fault.Unavailable("The store", io.EOF)
	m := &memory{channel: Channel{Epoch: "e1"}, deliver: []any{away, Routed}}
	s := newTestService(t, m)
	if answer, err := s.Accept(t.Context(), request(wire.BotItem, hello)); err != nil || answer.Status != "accepted" {
		t.Errorf("got %v, %v", answer, err)
	}
	if len(m.delivered) != 2 || m.delivered[0].CallbackID != m.delivered[1].CallbackID {
		t.Errorf("delivered %+v", m.delivered)
	}
	m.delivered, m.deliver = nil, []any{away}
	if _, err := s.Accept(t.Context(), request(wire.BotItem, hello)); !fault.Is(err, fault.ServiceUnavailable) || len(m.delivered) != 2 {
		t.Errorf("store away: %v after %d tries", err, len(m.delivered))
	}
	m.delivered, m.deliver = nil, []any{errors.New("a script that fails")}
	if _, err := s.Accept(t.Context(), request(wire.BotItem, hello)); err == nil || len(m.delivered) != 1 {
		t.Errorf("a failure of ours: %v after %d tries", err, len(m.delivered))
	}
}

func TestAnswerSaysWhatBecameOfEveryCommand(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1", Profile: []byte(flowJSON)}, deliver: []any{Parked}}
	s := newTestService(t, m)
	answer, err := s.Accept(t.Context(), request(wire.BotItem, hangUp))
	if err != nil || answer.Status != "parked" || answer.Messages != 0 || len(answer.Commands) != 3 {
		t.Fatalf("got %+v, %v", answer, err)
	}
	want := []string{"hangup allowed ", "transfer denied type_not_allowed", "made_up denied unknown_action"}
	for i, c := range answer.Commands {
		if got := c.Type + " " + c.Decision + " " + c.Reason; got != want[i] {
			t.Errorf("command %d: %s, want %s", i, got, want[i])
		}
	}
	if n := counted(t, s.metrics.commands.WithLabelValues("other", "denied")); n != 1 {
		t.Errorf("a made-up type is counted %v times as other", n)
	}
	s = newTestService(t, m, "hangup")
	if answer, err = s.Accept(t.Context(), request(wire.BotItem, hangUp)); err != nil || answer.Commands[0].Reason != command.PlatformDisabled {
		t.Errorf("with hangup off for the platform: %+v, %v", answer, err)
	}
}

func TestEveryEntryCarriesTheTrace(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1", Profile: []byte(flowJSON), CallID: "sip-call", TransactionID: "tx-channel"}}
	s := newTestService(t, m)
	r := request(wire.BotItem, hangUp)
	r.Trace = wire.Trace{TraceID: "trace", ParentSpanID: "span"}
	for _, given := range []string{"", "tx-request"} {
		r.Trace.TransactionID = given
		if _, err := s.Accept(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		want := wire.Trace{TraceID: "trace", ParentSpanID: "span", CallID: "sip-call", TransactionID: "tx-channel"}
		if given != "" {
			want.TransactionID = given
		}
		for _, e := range m.entries(t) {
			if e.Trace != want || e.Source != wire.SourceBot || !strings.HasPrefix(e.CallbackID, "cb_") || e.ChannelID != channelID || e.At == 0 {
				t.Errorf("entry %+v", e)
			}
		}
		sent := m.entries(t)[0].Command.Command.(*wire.Hangup).HangupSIPHeaders
		if !slices.Contains(sent, wire.NameValue{Name: wire.TransactionHeader, Value: want.TransactionID}) {
			t.Errorf("the hangup goes with %v", sent)
		}
	}
}

func TestBodiesAreToldApartByWhatTheySay(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1"}}
	s := newTestService(t, m)
	send := func(kind wire.WorkItemKind, body string) DeliverParams {
		t.Helper()
		if _, err := s.Accept(t.Context(), request(kind, body)); err != nil {
			t.Fatal(err)
		}
		return m.delivered[len(m.delivered)-1]
	}
	a, b, c := send(wire.LLMItem, `{"content":"x","n":1}`), send(wire.LLMItem, "{ \"content\": \"x\",\n\"n\":1}"), send(wire.LLMItem, `{"content":"y","n":1}`)
	if a.BodyDigest != b.BodyDigest || a.BodyDigest == c.BodyDigest || len(a.BodyDigest) != 64 || a.Deduplicate {
		t.Errorf("digests %s, %s, %s", a.BodyDigest, b.BodyDigest, c.BodyDigest)
	}
	if send(wire.BotItem, hello).Deduplicate || !send(wire.BotItem, strings.Replace(hello, `"content"`, `"messageId":7,"content"`, 1)).Deduplicate {
		t.Error("only a body with message ids or a time stamp can be told by them")
	}
	if d := send(wire.ToolItem, `[1,2]`); len(d.Entries) != 1 || m.entries(t)[0].Source != wire.SourceTool || m.entries(t)[0].WorkItemID != "w1" {
		t.Errorf("a tool's result becomes %s", d.Entries)
	}
}

func TestUnreadableProfilePermitsNothing(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1", Profile: []byte(strings.TrimSuffix(flowJSON, "}") + `,"speech":7}`)}}
	s := newTestService(t, m)
	if answer, err := s.Accept(t.Context(), request(wire.BotItem, hangUp)); err != nil || answer.Commands[0].Decision != "denied" {
		t.Errorf("got %+v, %v", answer, err)
	}
}

func TestTheTimeToTheStreamCountsFromTheRequest(t *testing.T) {
	s := newTestService(t, &memory{channel: Channel{Epoch: "e1"}, deliver: []any{Routed, Parked, Consumed}})
	r := request(wire.BotItem, hello)
	s.now = func() time.Time { return r.Received.Add(3 * time.Second) }
	for range 3 {
		_, _ = s.Accept(t.Context(), r) // the last one is refused, and does not come there
	}
	var m dto.Metric
	if err := s.metrics.seconds.WithLabelValues("bot").(prometheus.Metric).Write(&m); err != nil {
		t.Fatal(err)
	}
	if h := m.GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 6 {
		t.Errorf("%d callbacks took %v s", h.GetSampleCount(), h.GetSampleSum())
	}
}

// The gauge tells how long the oldest one waits that still does, whoever has let
// go of the others.
func TestTheOldestParkedCallbackIsKnown(t *testing.T) {
	m := &memory{channel: Channel{Epoch: "e1"}, deliver: []any{Parked}}
	registry, now := prometheus.NewRegistry(), time.Now()
	platform, err := command.NewPlatformPolicy(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewService(m, platform, slog.New(slog.DiscardHandler), registry, func() time.Time { return now })
	age := func() float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "telapi_callback_oldest_parked_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("there is no such gauge")
		return 0
	}
	m.waiting = map[int64]bool{}
	if got := age(); got != 0 || len(m.asked) != 0 {
		t.Errorf("nothing was parked, and %v s are reported after %v", got, m.asked)
	}
	for n := range int64(askAtOnce + 3) {
		if _, err := s.Accept(t.Context(), request(wire.BotItem, hello)); err != nil {
			t.Fatal(err)
		}
		m.waiting[n+1] = true
		now = now.Add(time.Second)
	}
	last := float64(askAtOnce + 3)
	if got := age(); got != last {
		t.Errorf("%v s are reported with all waiting, want %v", got, last)
	}
	delete(m.waiting, 2) // behind one that waits
	if got := age(); got != last {
		t.Errorf("%v s are reported with the first waiting, want %v", got, last)
	}
	delete(m.waiting, 1)
	if got := age(); got != last-2 {
		t.Errorf("%v s are reported with the first two gone, want %v", got, last-2)
	}
	for n := range int64(askAtOnce + 2) {
		delete(m.waiting, n+1)
	}
	if got := age(); got != 1 {
		t.Errorf("%v s are reported with one left, want 1", got)
	}
	known := m.waiting
	m.waiting = nil
	if got := age(); got != 1 {
		t.Errorf("%v s are reported with the store away, want 1", got)
	}
	delete(known, askAtOnce+3)
	m.waiting = known
	if got := age(); got != 0 {
		t.Errorf("%v s are reported with all gone", got)
	}
}
