package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
	// MaxUncheckedBody is the length of the longest body that is read and decoded
	// before its credential is checked. Short bodies save the round trip; long
	// ones cost memory and CPU time, which a client without a credential must not use.
	MaxUncheckedBody = 16 << 10
	// maxPolicies bounds the cache of compiled policies, one per channel.
	maxPolicies = 16_384
	// entryOverhead is the typical size of an entry besides the text of the body.
	entryOverhead = 256
	// resultWindow is how long an equal body of an LLM or a tool is a duplicate.
	// It has no ID, and an equal result is a new one some time later.
	resultWindow = 10 * time.Minute
	// credentialWindow is the longest lifetime of a credential.
	credentialWindow = 24 * time.Hour
)

// Service accepts callbacks. It is safe for concurrent use.
type Service struct {
	store    Store
	platform command.PlatformPolicy
	policies *lru.Cache[string, *channelPolicy]
	log      *slog.Logger
	now      func() time.Time
	parked   *parkedItems
	metrics  metrics
}

type channelPolicy struct {
	Channel
	policy *command.Policy
}

// NewService returns a service that uses the given store. The platform policy
// applies to all channels.
func NewService(store Store, platform command.PlatformPolicy, log *slog.Logger, registry prometheus.Registerer, now func() time.Time) *Service {
	policies, err := lru.New[string, *channelPolicy](maxPolicies)
	if err != nil {
		panic(err) // only if the size is not positive
	}
	parked := &parkedItems{store: store}
	return &Service{store, platform, policies, log, now, parked, newMetrics(registry, func() float64 {
		since := parked.oldest(context.Background())
		if since.IsZero() {
			return 0
		}
		return now().Sub(since).Seconds()
	})}
}

// Request is a callback with its complete body.
type Request struct {
	Credential
	Body     []byte
	Trace    wire.Trace
	Received time.Time
}

// Accept checks a callback and delivers it. It reports problems of the body
// only to a valid credential. It costs one round trip to the store if the
// channel's policy is cached.
func (s *Service) Accept(ctx context.Context, r Request) (Receipt, error) {
	receipt, err := s.accept(ctx, r)
	if err != nil {
		s.metrics.countError(r.Kind, err)
		return Receipt{}, err
	}
	s.metrics.countAccepted(r.Kind, receipt, s.now().Sub(r.Received))
	return receipt, nil
}

// Check returns the error that a callback with this credential gets, no matter what
// its body contains, or nil. A consumed credential passes, because the body decides
// whether the callback is a duplicate. Check must be called before a body over
// MaxUncheckedBody is read. It costs one round trip to the store and none without a
// token.
func (s *Service) Check(ctx context.Context, c Credential) error {
	status, err := s.checkCredential(ctx, c)
	if err == nil && status != Usable && status != Consumed {
		err = DeliverResult{Status: status}.err()
	}
	if err != nil {
		s.metrics.countError(c.Kind, err)
	}
	return err
}

// Reject returns the error to answer if a callback's body could not be read.
// MALFORMED_JSON is reported only to a valid credential. Other problems do not
// depend on the credential and are returned unchanged.
func (s *Service) Reject(ctx context.Context, c Credential, problem error) error {
	if fault.Is(problem, fault.MalformedJSON) {
		problem = s.rejectBody(ctx, c, 0, problem)
	}
	s.metrics.countError(c.Kind, problem)
	return problem
}

// rejectBody returns the problem of a body to a valid credential. A body that was
// checked before it was read gets the credential's own error otherwise.
func (s *Service) rejectBody(ctx context.Context, c Credential, size int, problem error) error {
	status, err := s.checkCredential(ctx, c)
	switch {
	case err != nil:
		return err
	case status == Usable:
		return problem
	case size > MaxUncheckedBody:
		return DeliverResult{Status: status}.err()
	default:
		return errInvalid
	}
}

func (s *Service) checkCredential(ctx context.Context, c Credential) (Status, error) {
	if !c.wellFormed() {
		return Invalid, nil
	}
	return s.store.CheckCredential(ctx, c)
}

func (c Credential) wellFormed() bool {
	return c.Digest != "" && wire.ValidChannelID(c.ChannelID) && (c.Kind == wire.BotItem || wire.ValidChannelID(c.WorkItemID))
}

func (s *Service) accept(ctx context.Context, r Request) (Receipt, error) {
	if !r.wellFormed() {
		return Receipt{}, errInvalid
	}
	result, err := bot.Parse(r.Kind, r.Body, r.ChannelID)
	if err != nil {
		return Receipt{}, s.rejectBody(ctx, r.Credential, len(r.Body), err)
	}
	digest := strictjson.DigestCompact(r.Body)
	for range 2 { // again if the cached policy belongs to an earlier epoch
		ch, err := s.channelPolicy(ctx, r.ChannelID)
		if err != nil {
			return Receipt{}, err
		}
		receipt, err := s.deliver(ctx, r, result, digest, ch)
		if !errors.Is(err, errStale) {
			return receipt, err
		}
		s.policies.Remove(r.ChannelID)
	}
	return Receipt{}, fault.Unavailable("The channel", errStale)
}

func (s *Service) channelPolicy(ctx context.Context, channelID string) (*channelPolicy, error) {
	if p, ok := s.policies.Get(channelID); ok {
		return p, nil
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
			s.log.WarnContext(ctx, "invalid gateway profile; all commands are denied", "channel", channelID, "error", err)
			profile = wire.GatewayProfile{}
		}
	}
	ch.Profile = nil // only the compiled policy is needed from here on
	p := &channelPolicy{ch, command.NewPolicy(profile, s.platform)}
	s.policies.Add(channelID, p)
	return p, nil
}

// deliver decides on the commands of a body and hands its entries to the store.
func (s *Service) deliver(ctx context.Context, r Request, result bot.Result, digest string, ch *channelPolicy) (Receipt, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Receipt{}, fmt.Errorf("create callback ID: %w", err)
	}
	base := wire.Entry{
		ChannelID: r.ChannelID, At: s.now().UnixMilli(), Trace: r.Trace,
		Source: r.Kind.Source(), CallbackID: "cb_" + id.String(), WorkItemID: r.WorkItemID,
	}
	base.Trace.CallID = cmp.Or(r.Trace.CallID, ch.CallID)
	base.Trace.TransactionID = cmp.Or(r.Trace.TransactionID, ch.TransactionID)
	entries, decisions := result.Entries(base, ch.policy)

	p := DeliverParams{
		Credential: r.Credential, CallbackID: base.CallbackID, BodyDigest: digest,
		DuplicateFor: duplicateFor(r.Kind, result), Epoch: ch.Epoch, Entries: make([][]byte, len(entries)),
	}
	buf := make([]byte, 0, len(r.Body)+len(entries)*entryOverhead) // shared by all entries
	for i := range entries {
		if buf, err = entries[i].AppendTo(buf[len(buf):]); err != nil {
			return Receipt{}, err
		}
		p.Entries[i] = buf
	}
	receipt := newReceipt(base.CallbackID, entries, decisions)
	if p.Receipt, err = json.Marshal(&receipt); err != nil {
		return Receipt{}, fmt.Errorf("encode receipt: %w", err)
	}
	delivered, err := s.store.Deliver(ctx, p)
	if fault.Is(err, fault.ServiceUnavailable) && ctx.Err() == nil {
		delivered, err = s.store.Deliver(ctx, p) // same ID: if only the reply was lost, it returns the first result
	}
	if err == nil {
		err = delivered.err()
	}
	if err != nil {
		return Receipt{}, err
	}
	receipt.Status = "accepted"
	if delivered.Status == Parked {
		receipt.Status = "parked"
		s.parked.add(ParkedItem{r.ChannelID, delivered.Number, s.now()})
	}
	return receipt, nil
}

// duplicateFor returns how long an equal body is a duplicate under a channel's
// credential: never for a bot's body without message IDs or timestamp, because a
// bot may send the same text twice on purpose.
func duplicateFor(kind wire.WorkItemKind, result bot.Result) time.Duration {
	switch {
	case kind != wire.BotItem:
		return resultWindow
	case result.HasIdentity:
		return credentialWindow
	default:
		return 0
	}
}

const (
	maxParked      = 1 << 16 // further items are not tracked
	parkedBatch    = 512     // items per store query
	parkedDeadline = time.Second
)

// parkedItems tracks the items that this instance parked, oldest first. Other
// instances and runtimes route them without notice, so the store is queried on
// demand.
type parkedItems struct {
	store    Store
	querying sync.Mutex // held during a query; serializes drop
	mu       sync.Mutex // protects items
	items    []ParkedItem
}

func (p *parkedItems) add(item ParkedItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) < maxParked {
		p.items = append(p.items, item)
	}
}

// oldest returns when the oldest item that is still parked was parked, or zero.
// If the store is unavailable, it returns the last known value.
func (p *parkedItems) oldest(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, parkedDeadline)
	defer cancel()
	p.querying.Lock()
	defer p.querying.Unlock()
	for {
		batch := p.drop(0)
		if len(batch) == 0 {
			return time.Time{}
		}
		parked, err := p.store.StillParked(ctx, batch)
		if err != nil {
			return batch[0].Since
		}
		if i := slices.Index(parked, true); i >= 0 {
			p.drop(i)
			return batch[i].Since
		}
		p.drop(len(batch))
	}
}

func (p *parkedItems) drop(n int) []ParkedItem {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = p.items[n:]
	return p.items[:min(len(p.items), parkedBatch)]
}
