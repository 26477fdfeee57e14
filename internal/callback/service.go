package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/bot"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

const (
	// maxFlows bounds how many conversations' profiles are kept ready for deciding.
	maxFlows = 16_384
	// usualEntry is what room is made for, beside what a body says.
	usualEntry = 256
)

// Service takes callbacks. It is safe for concurrent use.
type Service struct {
	store    Store
	platform command.PlatformPolicy
	flows    *lru.Cache[string, *flow]
	log      *slog.Logger
	now      func() time.Time
	parked   *parked
	metrics  metrics
}

// NewService returns a service on the given store. The platform stands over
// what conversations permit.
func NewService(store Store, platform command.PlatformPolicy, log *slog.Logger, registry prometheus.Registerer, now func() time.Time) *Service {
	flows, err := lru.New[string, *flow](maxFlows)
	if err != nil {
		panic(err) // of a size that is not positive, which this one is
	}
	waiting := &parked{store: store}
	return &Service{store, platform, flows, log, now, waiting, newMetrics(registry, func() float64 {
		since := waiting.oldest(context.Background())
		if since.IsZero() {
			return 0
		}
		return now().Sub(since).Seconds()
	})}
}

// Request is a callback as it came in.
type Request struct {
	Credential
	Body     []byte
	Unread   error      // why there is no body
	Trace    wire.Trace // as far as the request tells
	Received time.Time
}

// Receipt says what a body put on the stream.
type Receipt struct {
	CallbackID string               `json:"callbackId"`
	Messages   int                  `json:"messages"`
	Commands   []bot.CommandReceipt `json:"commands"`
}

// Answer is what a provider gets whose callback was taken.
type Answer struct {
	Status string // accepted or parked
	Receipt
	encoded []byte // the receipt
}

// JSON is the answer to the request of that id: the receipt as the store got
// it, and what is said with it.
func (a Answer) JSON(requestID string) []byte {
	body := append(make([]byte, 0, len(a.encoded)+len(requestID)+64), `{"status":"`+a.Status+`",`...)
	body = append(body, a.encoded[1:len(a.encoded)-1]...)
	return append(body, `,"requestId":"`+requestID+`"}`...)
}

// Accept takes one callback, or says why not. Checks come in this order: media
// type and size, a credential at all, the body, the credential itself, the
// conversation, an earlier answer. Whoever has no good credential learns
// nothing about the body. While profiles are known, it costs one round trip.
func (s *Service) Accept(ctx context.Context, r Request) (Answer, error) {
	answer, err := s.accept(ctx, r)
	s.metrics.count(r.Kind, answer, err, s.now().Sub(r.Received))
	return answer, err
}

func (s *Service) accept(ctx context.Context, r Request) (Answer, error) {
	if r.Unread != nil && !fault.Is(r.Unread, fault.MalformedJSON) {
		return Answer{}, r.Unread
	}
	if r.Digest == "" || !wire.ValidChannelID(r.ChannelID) || r.Kind != wire.BotItem && !wire.ValidChannelID(r.WorkItemID) {
		return Answer{}, errInvalid
	}
	result, digest, err := r.read()
	if err != nil {
		return Answer{}, s.refuseBody(ctx, r.Credential, err)
	}
	for range 2 { // again if the channel is not the one that is known
		f, err := s.flow(ctx, r.ChannelID)
		if err != nil {
			return Answer{}, err
		}
		answer, err := s.route(ctx, r, result, digest, f)
		if !errors.Is(err, errStale) {
			return answer, err
		}
		s.flows.Remove(r.ChannelID)
	}
	return Answer{}, fault.Unavailable("The conversation", errStale)
}

// read decodes the body once, and makes out what tells it from another.
func (r Request) read() (bot.Result, string, error) {
	if r.Unread != nil {
		return nil, "", r.Unread
	}
	result, err := Parse(r.Kind, r.Body, r.ChannelID)
	if err != nil {
		return nil, "", err
	}
	return result, strictjson.DigestCompact(r.Body), nil
}

// refuseBody says what is wrong with a body, to those who may know.
func (s *Service) refuseBody(ctx context.Context, c Credential, problem error) error {
	switch valid, err := s.store.CheckCredential(ctx, c); {
	case err != nil:
		return err
	case valid:
		return problem
	default:
		return errInvalid
	}
}

// flow is what decides on a conversation's commands.
type flow struct {
	Channel
	policy *command.Policy
}

func (s *Service) flow(ctx context.Context, channelID string) (*flow, error) {
	if f, ok := s.flows.Get(channelID); ok {
		return f, nil
	}
	ch, err := s.store.Channel(ctx, channelID)
	if errors.Is(err, ErrChannelNotFound) {
		return nil, errInvalid
	}
	if err != nil {
		return nil, err
	}
	var profile wire.GatewayProfile
	if len(ch.Profile) > 0 {
		if err := json.Unmarshal(ch.Profile, &profile); err != nil {
			s.log.WarnContext(ctx, "a channel's profile cannot be read; it permits no commands", "channel", channelID, "error", err)
			profile = wire.GatewayProfile{}
		}
	}
	f := &flow{ch, command.NewPolicy(profile, s.platform)}
	f.Profile = nil // compiled
	s.flows.Add(channelID, f)
	return f, nil
}

// route decides on a body and hands it to the store.
func (s *Service) route(ctx context.Context, r Request, result bot.Result, digest string, f *flow) (Answer, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Answer{}, fmt.Errorf("name the callback: %w", err)
	}
	base := wire.Entry{
		ChannelID: r.ChannelID, At: s.now().UnixMilli(), Trace: r.Trace,
		Source: r.Kind.Source(), CallbackID: "cb_" + id.String(), WorkItemID: r.WorkItemID,
	}
	base.Trace.CallID = cmp.Or(r.Trace.CallID, f.CallID)
	base.Trace.TransactionID = cmp.Or(r.Trace.TransactionID, f.TransactionID)
	entries := result.Entries(base, f.policy)
	answer := Answer{Receipt: Receipt{CallbackID: base.CallbackID}}
	answer.Messages, answer.Commands = bot.Receipt(entries)

	d := DeliverParams{Credential: r.Credential, CallbackID: base.CallbackID, BodyDigest: digest, Epoch: f.Epoch, Entries: make([][]byte, len(entries))}
	if b, ok := result.(*bot.Body); ok {
		d.Deduplicate = b.HasIdentity()
	}
	room := make([]byte, 0, len(r.Body)+len(entries)*usualEntry)
	for i := range entries {
		if room, err = entries[i].AppendTo(room[len(room):]); err != nil {
			return Answer{}, err
		}
		d.Entries[i] = room
	}
	if answer.encoded, err = json.Marshal(&answer.Receipt); err != nil {
		return Answer{}, fmt.Errorf("encode the receipt: %w", err)
	}
	d.Receipt = answer.encoded
	outcome, err := s.deliver(ctx, d)
	if err != nil {
		return Answer{}, err
	}
	if outcome.Number > 0 {
		s.parked.add(ParkedItem{r.ChannelID, outcome.Number, s.now()})
	}
	answer.Status, err = judge(outcome)
	return answer, err
}

// deliver tries a second time, with the same id, where the store's answer was
// lost: it may have done its work, and says so then.
func (s *Service) deliver(ctx context.Context, d DeliverParams) (DeliverResult, error) {
	outcome, err := s.store.Deliver(ctx, d)
	if fault.Is(err, fault.ServiceUnavailable) && ctx.Err() == nil {
		outcome, err = s.store.Deliver(ctx, d)
	}
	return outcome, err
}
