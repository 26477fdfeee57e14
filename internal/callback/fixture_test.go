package callback_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/redisstore"
	"telapi/test/embedded"
	"telapi/test/testkit"
)

const (
	channelID   = "call-1"
	profileJSON = `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true}]}`
	helloBody   = `{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"Hello"}}}]}}`
	hangupBody  = `{"conversation":{"identifier":{"id":"call-1"}},"actions":[{"type":"hangup","commandId":"c1"},{"type":"transfer","target":"tel:+49301"},{"type":"made_up"}]}`
)

var errStoreDown = fault.Unavailable("The store", io.EOF)

// recordingStore passes calls on to the embedded engine, records them and
// injects failures.
type recordingStore struct {
	callback.Store
	calls     []string
	profile   []byte // if set, replaces that of channels
	delivered []callback.DeliverParams
	streamed  []callback.StreamParams

	checkErr, parkedErr error
	onParked            func() // if set, runs during StillParked
	// deliver, if set, replaces Deliver and DeliverStream; next calls the engine.
	deliver func(next func() (callback.DeliverResult, error)) (callback.DeliverResult, error)
}

func (s *recordingStore) Channel(ctx context.Context, id string) (callback.Channel, error) {
	s.calls = append(s.calls, "channel")
	c, err := s.Store.Channel(ctx, id)
	if s.profile != nil {
		c.Profile = s.profile
	}
	return c, err
}

func (s *recordingStore) CheckCredential(ctx context.Context, c callback.Credential) (callback.CredentialState, error) {
	s.calls = append(s.calls, "check")
	if s.checkErr != nil {
		return callback.CredentialState{Status: callback.Ended}, s.checkErr
	}
	return s.Store.CheckCredential(ctx, c)
}

func (s *recordingStore) StillParked(ctx context.Context, items []callback.ParkedItem) ([]bool, error) {
	s.calls = append(s.calls, "parked")
	if s.onParked != nil {
		s.onParked()
	}
	if s.parkedErr != nil {
		return nil, s.parkedErr
	}
	return s.Store.StillParked(ctx, items)
}

func (s *recordingStore) Deliver(ctx context.Context, p callback.DeliverParams) (callback.DeliverResult, error) {
	s.calls = append(s.calls, "deliver")
	s.delivered = append(s.delivered, p)
	next := func() (callback.DeliverResult, error) { return s.Store.Deliver(ctx, p) }
	if s.deliver != nil {
		return s.deliver(next)
	}
	return next()
}

func (s *recordingStore) DeliverStream(ctx context.Context, p callback.StreamParams) (callback.DeliverResult, error) {
	s.calls = append(s.calls, "stream")
	s.streamed = append(s.streamed, p)
	next := func() (callback.DeliverResult, error) { return s.Store.DeliverStream(ctx, p) }
	if s.deliver != nil {
		return s.deliver(next)
	}
	return next()
}

// fixture is a service on an embedded engine with one open channel.
type fixture struct {
	*testing.T
	engine   *redisstore.Store
	store    *recordingStore
	registry *prometheus.Registry
	service  *callback.Service
	runtime  *calls.Runtime
	channel  *calls.Channel
	now      time.Time // of the service
	offers   []string
	log      testkit.Buffer
}

// Reoffer implements callback.Offers.
func (f *fixture) Reoffer(offer []byte) { f.offers = append(f.offers, string(offer)) }

type options struct {
	profile string
	limits  wire.ChannelLimits
}

func newFixture(t *testing.T, o options) *fixture {
	t.Helper()
	engine := embedded.Open(t)
	f := &fixture{T: t, engine: engine, store: &recordingStore{Store: redisstore.NewCallbacks(engine)}, now: time.Now()}
	f.useService()
	var err error
	option := engine.ClientOption()
	option.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	f.runtime, err = calls.New(calls.Options{Store: option, Name: "runtime", Limits: o.limits})
	testkit.Must(t, err)
	t.Cleanup(f.runtime.Close)
	f.channel = f.open(channelID, o.profile)
	return f
}

// useService replaces the service with a new one.
func (f *fixture) useService() {
	f.Helper()
	f.registry = prometheus.NewRegistry()
	f.service = callback.NewService(f.store, f, command.PlatformPolicy{}, f.log.Logger(), f.registry, func() time.Time { return f.now }, 25)
}

func (f *fixture) open(id, profile string) *calls.Channel {
	f.Helper()
	return f.openOf("team", id, profile)
}

func (f *fixture) openOf(teamID, id, profile string) *calls.Channel {
	f.Helper()
	c, err := f.runtime.Open(f.Context(), calls.Claim{}, wire.Open{
		Request: wire.Request{Channel: id}, Team: teamID, Endpoint: "endpoint", CallID: "sip-call", TransactionID: "tx-channel", Profile: []byte(profile),
	})
	testkit.Must(f, err)
	return c
}

// request awaits a work item and returns a callback that answers it.
func (f *fixture) request(kind wire.WorkItemKind, body string) callback.Request {
	f.Helper()
	return f.requestOn(f.channel, calls.AwaitOptions{Kind: kind}, body)
}

func (f *fixture) requestOn(c *calls.Channel, o calls.AwaitOptions, body string) callback.Request {
	f.Helper()
	item, err := c.Await(f.Context(), o)
	testkit.Must(f, err)
	sum := sha256.Sum256([]byte(item.Token))
	r := callback.Request{
		Credential: callback.Credential{ChannelID: c.ID, Kind: item.Kind, Digest: hex.EncodeToString(sum[:])},
		Body:       []byte(strings.ReplaceAll(body, channelID, c.ID)), Received: f.now,
	}
	if item.Kind != wire.BotItem {
		r.WorkItemID = item.ID
	}
	return r
}

func (f *fixture) accept(r callback.Request) callback.Receipt {
	f.Helper()
	receipt, err := f.service.Accept(f.Context(), r)
	testkit.Must(f, err)
	return receipt
}

// entries returns the entries on the runtime stream that came from callbacks.
func (f *fixture) entries() []wire.Entry {
	f.Helper()
	all, err := f.runtime.Entries(f.Context(), channelID, "", 1000)
	testkit.Must(f, err)
	var list []wire.Entry
	for _, e := range all {
		if e.Entry.CallbackID != "" {
			list = append(list, e.Entry)
		}
	}
	return list
}

// metric returns the metric with the given label values, or nil.
func (f *fixture) metric(name string, labels ...string) *dto.Metric {
	f.Helper()
	families, err := f.registry.Gather()
	testkit.Must(f, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if family.GetName() == name && slices.Equal(values, labels) {
				return m
			}
		}
	}
	return nil
}
