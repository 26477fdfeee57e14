package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/cache"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/strictjson"
	"telapi/internal/telemetry"
)

const (
	// MaxUncheckedBody is the maximum length of a body that is read and decoded
	// before its credential is checked, which saves a round trip. A client without
	// a credential must not use the memory and CPU time for a longer body.
	MaxUncheckedBody = 16 << 10
	// policyBytes bounds the cache of compiled policies, one per channel. A policy needs
	// about policyOverhead and a multiple of its gateway profile.
	policyBytes    = 64 << 20
	policyOverhead = 512
	policyFactor   = 4
	// resultWindow is how long a repeated body of an LLM or a tool is a duplicate.
	// Such a body has no ID; after that time, the same body is a new result.
	resultWindow = 10 * time.Minute
	// credentialWindow is the maximum lifetime of a credential.
	credentialWindow = 24 * time.Hour
)

// Service accepts callbacks. It is safe for concurrent use.
type Service struct {
	store    Store
	offers   Offers
	platform command.PlatformPolicy
	policies *cache.LRU[*channelPolicy]
	log      *slog.Logger
	now      func() time.Time
	parked   *parkedItems
	streams  *OpenStreams
	metrics  metrics
}

type channelPolicy struct {
	Channel
	policy *command.Policy
}

// NewService returns a service that uses the given store. The platform policy
// applies to all channels. A team may use teamShare percent of the memory for policies
// and of the bytes that this instance parks.
func NewService(store Store, offers Offers, platform command.PlatformPolicy, log *slog.Logger, registry prometheus.Registerer, now func() time.Time, teamShare int) *Service {
	s := &Service{
		store: store, offers: offers, platform: platform, policies: cache.NewLRU[*channelPolicy](policyBytes, teamShare),
		log: log, now: now,
	}
	parkedBudget := ratelimit.NewBudget(registry, "parked_bytes", "bytes for callbacks that wait for earlier work items", parkedBytes, teamShare)
	s.parked = &parkedItems{store: store, now: now, budget: parkedBudget}
	s.streams = &OpenStreams{service: s, open: map[string]map[*Stream]struct{}{}}
	s.metrics = newMetrics(registry, s.parked.oldestSeconds, s.streams.count)
	return s
}

// Close waits for the service's goroutines. The caller first ends the notices to StreamNotices.
func (s *Service) Close() { s.streams.checks.Wait() }

// StreamNotices returns the listener that ends open streams of cancelled work items and
// ended channels.
func (s *Service) StreamNotices() *OpenStreams { return s.streams }

// Request is a callback with its complete body.
type Request struct {
	Credential
	Body     []byte
	Trace    wire.Trace
	Received time.Time
}

// Accept checks a callback and delivers it. It reports problems of the body only if
// the credential is valid. It needs one round trip to the store if the channel's
// policy is cached.
func (s *Service) Accept(ctx context.Context, r Request) (Receipt, error) {
	receipt, err := s.accept(ctx, r)
	if err != nil {
		s.metrics.countError(r.Kind, err)
		return Receipt{}, err
	}
	s.metrics.countAccepted(r.Kind, receipt, s.now().Sub(r.Received))
	return receipt, nil
}

// Try returns the effects that a callback would have with the given profile. The paths of
// warnings are those in a request whose member body is the callback.
func (s *Service) Try(t Trial, profile wire.GatewayProfile) (DryRun, error) {
	result, err := Try(t, command.NewPolicy(profile, s.platform), s.now())
	for i := range result.Warnings {
		result.Warnings[i].Path = "/body" + result.Warnings[i].Path
	}
	return result, err
}

// Check returns the channel's team, or an error if every callback with this credential would be
// rejected. A consumed credential passes, because the callback may be a duplicate, whose
// response has the receipt. Check must be called before a body longer than MaxUncheckedBody is
// read. It needs one round trip to the store, two if the channel's policy is not cached, or none
// without a token.
func (s *Service) Check(ctx context.Context, c Credential) (teamID string, err error) {
	teamID, _, err = s.authorize(ctx, c)
	if err != nil {
		s.metrics.countError(c.Kind, err)
	}
	return teamID, err
}

// authorize is Check, but also returns the state of the credential and counts nothing.
func (s *Service) authorize(ctx context.Context, c Credential) (teamID string, state CredentialState, err error) {
	if err := c.validate(); err != nil {
		return "", state, err
	}
	if state, err = s.store.CheckCredential(ctx, c); err != nil {
		return "", state, err
	}
	if !slices.Contains([]Status{Usable, Consumed, Streaming}, state.Status) {
		return "", state, DeliverResult{Status: state.Status}.err()
	}
	ch, err := s.channelPolicy(ctx, c.ChannelID)
	if err != nil {
		return "", state, err
	}
	return ch.TeamID, state, nil
}

// Reject returns the error for a callback whose body could not be read. For an incomplete body,
// with or without a Check before, it returns MALFORMED_JSON if the credential can be used, and
// errInvalid otherwise. It returns any other problem unchanged.
func (s *Service) Reject(ctx context.Context, c Credential, problem error) error {
	if fault.Is(problem, fault.MalformedJSON) {
		const revealStatus = false
		problem = s.rejectBody(ctx, c, revealStatus, problem)
	}
	s.metrics.countError(c.Kind, problem)
	return problem
}

// rejectBody returns the problem of a body if the credential can be used. Otherwise it returns
// errInvalid, or with revealStatus the error that says why it can't.
func (s *Service) rejectBody(ctx context.Context, c Credential, revealStatus bool, problem error) error {
	state, err := s.credentialState(ctx, c)
	switch status := state.Status; {
	case err != nil:
		return err
	case status == Usable || status == Streaming:
		return problem
	case revealStatus:
		return DeliverResult{Status: status}.err()
	default:
		return errInvalid.WithCause(fmt.Errorf("%s token with an invalid body", status))
	}
}

func (s *Service) credentialState(ctx context.Context, c Credential) (CredentialState, error) {
	if c.validate() != nil {
		return CredentialState{Status: Invalid}, nil //nolint:nilerr // the status is the result
	}
	return s.store.CheckCredential(ctx, c)
}

// validate returns errInvalid if the credential cannot exist.
func (c Credential) validate() error {
	switch {
	case c.Digest == "":
		return errInvalid.WithCause(errors.New("missing token"))
	case !wire.ValidID(c.ChannelID) || c.Kind != wire.BotItem && !wire.ValidID(c.WorkItemID):
		return errInvalid.WithCause(errors.New("invalid channel or work item ID"))
	}
	return nil
}

func (s *Service) accept(ctx context.Context, r Request) (receipt Receipt, err error) {
	if err := r.validate(); err != nil {
		return Receipt{}, err
	}
	_, span := telemetry.StartSpan(ctx, "parse")
	result, err := Parse(r.Kind, r.Body, r.ChannelID)
	span.End()
	if err != nil {
		passedCheck := len(r.Body) > MaxUncheckedBody // then the client knows the status
		return Receipt{}, s.rejectBody(ctx, r.Credential, passedCheck, err)
	}
	p := DeliverParams{Credential: r.Credential, CallbackID: newCallbackID(), BodyDigest: strictjson.Digest(r.Body), DuplicateFor: duplicateFor(r.Kind, result)}
	err = s.withPolicy(ctx, r.ChannelID, func(ch *channelPolicy) (err error) {
		p.Epoch = ch.Epoch
		base := ch.entry(r.Credential, r.Trace, p.CallbackID, s.now())
		if p.Entries, receipt, p.Receipt, err = ch.decide(ctx, result, base, r.Body); err != nil {
			return err
		}
		stored := append(slices.Clip(p.Entries), p.Receipt)
		waitsFor, err := s.storeOrPark(ctx, ch.TeamID, ParkedItem{ChannelID: r.ChannelID}, stored, func(ctx context.Context, mayPark bool) (DeliverResult, error) {
			p.Park = mayPark
			return s.store.Deliver(ctx, p)
		})
		receipt.setStatus(waitsFor)
		return err
	})
	return receipt, err
}

func newCallbackID() string { return "cb_" + uuid.Must(uuid.NewV7()).String() }

// withPolicy calls deliver with the policy of a channel, and again if the cached policy belongs to
// an earlier epoch.
func (s *Service) withPolicy(ctx context.Context, channelID string, deliver func(*channelPolicy) error) error {
	for range 2 {
		ch, err := s.channelPolicy(ctx, channelID)
		if err != nil {
			return err
		}
		if err := deliver(ch); !errors.Is(err, errStale) {
			return err
		}
		s.policies.Remove(channelID)
	}
	return fault.Unavailable("The channel", errStale)
}

func (s *Service) channelPolicy(ctx context.Context, channelID string) (*channelPolicy, error) {
	if p, ok := s.policies.Get(channelID); ok {
		return p, nil
	}
	ch, err := s.store.Channel(ctx, channelID)
	if errors.Is(err, ErrChannelNotFound) {
		return nil, errInvalid.WithCause(err)
	}
	if err != nil {
		return nil, err
	}
	var profile wire.GatewayProfile
	if len(ch.Profile) > 0 {
		if err := json.Unmarshal(ch.Profile, &profile); err != nil {
			s.log.WarnContext(ctx, "invalid gateway profile; all commands are denied", "channel", channelID, "error", err)
			profile = wire.GatewayProfile{}
		}
	}
	size := policyOverhead + policyFactor*int64(len(ch.Profile))
	ch.Profile = nil // not needed any more: the policy is compiled
	p := &channelPolicy{ch, command.NewPolicy(profile, s.platform)}
	s.policies.Add(ch.TeamID, channelID, size, p)
	return p, nil
}

// entry returns what all entries of a callback have in common.
func (ch *channelPolicy) entry(c Credential, t wire.Trace, callbackID string, now time.Time) wire.Entry {
	t.CallID = cmp.Or(t.CallID, ch.CallID)
	t.TransactionID = cmp.Or(t.TransactionID, ch.TransactionID)
	return wire.Entry{ChannelID: c.ChannelID, At: now.UnixMilli(), Trace: t, Source: c.Kind.Source(), CallbackID: callbackID, WorkItemID: c.WorkItemID}
}

// decide decides on the commands of a body. It returns the encoded entries, and the receipt in
// both forms.
func (ch *channelPolicy) decide(ctx context.Context, result Result, base wire.Entry, body []byte) (encoded [][]byte, receipt Receipt, rawReceipt []byte, err error) {
	_, span := telemetry.StartSpan(ctx, "policy")
	entries, decisions := result.Entries(base, ch.policy)
	span.End()
	receipt = newReceipt(base, result, entries, decisions, body)
	recordDecisions(ctx, ch.TeamID, receipt.Commands)
	if rawReceipt, err = json.Marshal(&receipt); err != nil {
		return nil, receipt, nil, fmt.Errorf("encode receipt: %w", err)
	}
	encoded, err = encode(entries)
	return encoded, receipt, rawReceipt, err
}

func encode(entries []wire.Entry) (_ [][]byte, err error) {
	encoded := make([][]byte, len(entries))
	for i := range entries {
		if encoded[i], err = json.Marshal(&entries[i]); err != nil {
			return nil, fmt.Errorf("encode entry: %w", err)
		}
	}
	return encoded, nil
}

// storeOrPark calls deliver, which may park the item if the memory of the team and this instance
// has room for stored. If the store is unavailable, it calls deliver once more, with the same
// result if only the reply was lost. It returns the work item for which a parked one waits, or nil.
func (s *Service) storeOrPark(ctx context.Context, teamID string, item ParkedItem, stored [][]byte, deliver func(ctx context.Context, mayPark bool) (DeliverResult, error)) (*AwaitedItem, error) {
	size := int64(parkedOverhead)
	for _, text := range stored {
		size += int64(len(text))
	}
	noRoom := s.parked.reserve(ctx, teamID, size)
	mayPark := noRoom == nil
	storing, span := telemetry.StartSpan(ctx, "store")
	delivered, err := deliver(storing, mayPark)
	if fault.Is(err, fault.ServiceUnavailable) && ctx.Err() == nil {
		delivered, err = deliver(storing, mayPark)
	}
	span.End()
	if mayPark && err == nil && delivered.Status == Parked {
		item.Number, item.Since = delivered.Number, s.now()
		s.parked.track(item, teamID, size)
	} else if mayPark {
		s.parked.budget.Return(teamID, size)
	}
	if err == nil && delivered.Status == NotParked {
		err = noRoom
	} else if err == nil {
		err = delivered.err()
	}
	if err != nil {
		return nil, err
	}
	if len(delivered.Offer) > 0 { // the entries wait until a runtime claims the session
		s.offers.Reoffer(delivered.Offer)
	}
	return delivered.WaitsFor, nil
}

// recordDecisions adds the team and an event for each command to the span of the
// callback.
func recordDecisions(ctx context.Context, teamID string, decisions []CommandDecision) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("telapi.team_id", teamID))
	for _, d := range decisions {
		span.AddEvent("command", trace.WithAttributes(attribute.String("telapi.command_id", d.CommandID),
			attribute.String("telapi.command", d.Type), attribute.String("telapi.decision", d.Decision), attribute.String("telapi.reason", d.Reason)))
	}
}

// duplicateFor returns how long a repeated body is a duplicate under a channel's
// credential. A bot's body without a message ID or timestamp never is, because a bot
// may send the same text twice on purpose.
func duplicateFor(kind wire.WorkItemKind, result Result) time.Duration {
	switch {
	case kind != wire.BotItem:
		return resultWindow
	case result.hasIdentity:
		return credentialWindow
	default:
		return 0
	}
}
