package callruntime

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// Scope is what a credential is good for.
type Scope string

// The scopes.
const (
	// ScopeWorkItem credentials are consumed by the first answer, which is received
	// in the order in which the work items were registered.
	ScopeWorkItem Scope = "work_item"
	// ScopeChannel credentials are good for any number of answers, each
	// received when it comes, until they expire or the channel ends.
	ScopeChannel Scope = "channel"
)

// tokenPrefix lets whoever keeps secrets out of logs, this service included,
// know a credential when it comes where it should not.
const tokenPrefix = "cbt_"

// How long an answer is awaited.
const (
	DefaultTTL = 5 * time.Minute
	MaxTTL     = 24 * time.Hour
)

// AwaitOptions describe a work item. What is empty has a default: BotItem, ScopeWorkItem,
// an id of its own, DefaultTTL.
type AwaitOptions struct {
	Kind       wire.WorkItemKind
	Scope      Scope
	WorkItemID string // 1 to 128 letters, digits and . _ : -, other than those of the channel's recent items
	TTL        time.Duration
}

// WorkItem is what a provider needs to answer.
type WorkItem struct {
	ID        string
	Kind      wire.WorkItemKind
	Token     string // the credential; nobody else has it, the store has a digest
	Path      string // where to post the answer, below the service's address
	ExpiresAt time.Time
}

// LogValue leaves the credential out.
func (w WorkItem) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", w.ID), slog.String("kind", string(w.Kind)), slog.Time("expiresAt", w.ExpiresAt))
}

// Await registers a work item before its provider is asked. Receive returns its
// answer after those of items that were registered before, or an entry of kind
// timeout once nobody has answered in time.
func (c *Channel) Await(ctx context.Context, o AwaitOptions) (WorkItem, error) {
	if err := o.complete(); err != nil {
		return WorkItem{}, fmt.Errorf("await: %w", err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // which never fails
	item := WorkItem{ID: o.WorkItemID, Kind: o.Kind, Token: tokenPrefix + base64.RawURLEncoding.EncodeToString(secret), Path: wire.WebhooksPath + string(o.Kind) + "/" + c.ID}
	if o.Kind != wire.BotItem {
		item.Path += "/" + item.ID
	}
	timeout, err := json.Marshal(wire.Entry{
		Kind: wire.KindTimeout, ChannelID: c.ID, At: time.Now().Add(o.TTL).UnixMilli(), Trace: wire.Trace{CallID: c.CallID, TransactionID: c.TransactionID},
		WorkItemID: item.ID, WorkItemKind: o.Kind,
	})
	if err != nil {
		return WorkItem{}, fmt.Errorf("await: %w", err)
	}
	digest := sha256.Sum256([]byte(item.Token))
	reply, err := c.run(ctx, c.runtime.await,
		c.token, hex.EncodeToString(digest[:]), string(o.Kind), string(o.Scope), item.ID, strconv.FormatInt(o.TTL.Milliseconds(), 10), string(timeout),
	).AsStrSlice()
	if err == nil {
		err = refusals[reply[0]]
	}
	if err != nil {
		return WorkItem{}, fmt.Errorf("await: %w", err)
	}
	deadline, err := strconv.ParseInt(reply[1], 10, 64)
	if err != nil {
		return WorkItem{}, fmt.Errorf("await: %w", err)
	}
	item.ExpiresAt = time.UnixMilli(deadline)
	return item, nil
}

func (o *AwaitOptions) complete() error {
	if o.Kind == "" {
		o.Kind = wire.BotItem
	}
	if o.Scope == "" {
		o.Scope = ScopeWorkItem
	}
	if o.WorkItemID == "" {
		o.WorkItemID = uuid.NewString()
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	switch {
	case !slices.Contains(wire.WorkItemKinds, o.Kind):
		return fmt.Errorf("%q is no kind of work item: bot, llm or tool", o.Kind)
	case o.Scope != ScopeWorkItem && o.Scope != ScopeChannel:
		return fmt.Errorf("%q is no scope: work_item or channel", o.Scope)
	case !wire.ValidChannelID(o.WorkItemID):
		return fmt.Errorf("%q is no id of a work item: up to 128 letters, digits and . _ : -", o.WorkItemID)
	case o.TTL < time.Millisecond || o.TTL > MaxTTL:
		return fmt.Errorf("a work item can be awaited for up to %s, not for %s", MaxTTL, o.TTL)
	}
	return nil
}

// Cancel gives a work item up: what waits for it is received without it, an
// answer that has come early is dropped, and a provider that answers later is
// refused. It fails with ErrWorkItemNotFound when the answer is on the stream already,
// or the item is over its time.
func (c *Channel) Cancel(ctx context.Context, workItemID string) error {
	return c.do(ctx, "cancel", c.runtime.cancel, c.token, workItemID)
}
