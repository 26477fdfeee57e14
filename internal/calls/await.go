package calls

import (
	"cmp"
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
	"telapi/internal/background"
	"telapi/internal/kv"
)

// Bounds of AwaitOptions.TTL.
const (
	DefaultTTL = 5 * time.Minute
	MaxTTL     = 24 * time.Hour
)

// MaxWorkItems is MAX_WORK_ITEMS of the scripts: how many work items of a channel can be
// unsettled, and how many credentials of scope channel it can have in all.
const MaxWorkItems = 1000

// AwaitOptions describe a work item. The defaults are wire.BotItem, wire.ScopeItem,
// a random ID and DefaultTTL.
type AwaitOptions struct {
	Kind       wire.WorkItemKind
	Scope      wire.Scope
	WorkItemID string // 1 to 128 letters, digits and . _ : -, but not . or .., unique among the channel's recent items
	TTL        time.Duration
	// Trace is that of the entry that caused the request. It is part of the URL of
	// the callback, so that the callback's entries continue the trace.
	Trace wire.Trace
	// Token is the credential, from NewToken. A caller that chooses WorkItemID
	// and Token can repeat Await or Cancel the item if the outcome is unknown.
	// Without a Token, Await cancels such an item by itself.
	Token string
	// Commit is a position to commit before, as CommitAndSend does.
	Commit string
}

// CallbackPath returns the path of a work item's callback, with the trace in its query.
func CallbackPath(kind wire.WorkItemKind, channelID, workItemID string, t wire.Trace) string {
	path := wire.WebhooksPath + string(kind) + "/" + channelID
	if kind != wire.BotItem {
		path += "/" + workItemID
	}
	return path + t.Query()
}

// NewToken returns a random credential.
func NewToken() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return wire.TokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
}

// WorkItem contains the data that a provider needs to post its result.
type WorkItem struct {
	ID        string
	Kind      wire.WorkItemKind
	Token     string // the credential; the store keeps only its digest
	Path      string // of the callback, below the service's address, with the trace in its query
	ExpiresAt time.Time
	number    string // among the channel's items; 0 for a channel credential
}

// LogValue omits the credential.
func (w WorkItem) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", w.ID), slog.String("kind", string(w.Kind)), slog.Time("expiresAt", w.ExpiresAt))
}

// Await registers a work item. Call it before the request to the provider. Receive
// returns the result after those of earlier work items, or an entry of kind
// timeout if the item expires first. Awaiting the same ID and Token again has no
// effect, unless the item is forgotten: 1,024 later ones are settled. An item whose Await
// failed does not delay the items after it.
func (c *Channel) Await(ctx context.Context, o AwaitOptions) (WorkItem, error) {
	item, err := c.register(ctx, o)
	if err != nil {
		return WorkItem{}, wrap("await", err)
	}
	c.newestItem.Store(&item)
	return item, nil
}

// cancelUnknown cancels an item in the background after the reply to its
// registration was lost. It cancels once more when the registration, which may
// still be under way, cannot take effect any more.
func (c *Channel) cancelUnknown(id string) {
	_ = c.runtime.start(func() {
		_ = c.Cancel(c.ctx, id)
		if background.Sleep(c.ctx, attemptTimeout) == nil {
			_ = c.Cancel(c.ctx, id)
		}
	})
}

func (c *Channel) register(ctx context.Context, o AwaitOptions) (item WorkItem, err error) {
	if err := o.complete(); err != nil {
		return item, err
	}
	item = WorkItem{ID: o.WorkItemID, Kind: o.Kind, Token: cmp.Or(o.Token, NewToken()+"."+o.WorkItemID), Path: CallbackPath(o.Kind, c.ID, o.WorkItemID, o.Trace)}
	o.Trace.CallID, o.Trace.TransactionID = c.CallID, c.TransactionID
	timeout, err := json.Marshal(wire.Entry{
		Kind: wire.KindTimeout, ChannelID: c.ID, At: time.Now().Add(o.TTL).UnixMilli(), Trace: o.Trace,
		WorkItemID: item.ID, WorkItemKind: o.Kind,
	})
	if err != nil {
		return item, err
	}
	digest := sha256.Sum256([]byte(item.Token))
	reply, err := c.run(ctx, "await", c.token, hex.EncodeToString(digest[:]), string(o.Kind), string(o.Scope), item.ID,
		kv.Millis(o.TTL), string(timeout), c.lastItem(), o.Commit).AsStrSlice()
	if err == nil {
		err = replyError(reply[0])
	} else if o.Token == "" {
		c.cancelUnknown(item.ID)
	}
	if err != nil {
		return item, err
	}
	deadline, err := strconv.ParseInt(reply[1], 10, 64)
	item.ExpiresAt, item.number = time.UnixMilli(deadline), reply[2]
	return item, err
}

// complete fills in the defaults and checks the options.
func (o *AwaitOptions) complete() error {
	o.Kind = cmp.Or(o.Kind, wire.BotItem)
	o.Scope = cmp.Or(o.Scope, wire.ScopeItem)
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	if o.WorkItemID == "" {
		o.WorkItemID = uuid.NewString()
	}
	switch {
	case !slices.Contains(wire.WorkItemKinds, o.Kind):
		return fmt.Errorf("invalid kind %q: use bot, llm or tool", o.Kind)
	case o.Scope != wire.ScopeItem && o.Scope != wire.ScopeChannel:
		return fmt.Errorf("invalid scope %q: use item or channel", o.Scope)
	case !wire.ValidID(o.WorkItemID):
		return invalidID("work item", o.WorkItemID)
	case o.Kind == wire.BotItem && !slices.Contains([]string{"", o.WorkItemID}, wire.TokenWorkItem(o.Token)): // its callbacks would be rejected
		return fmt.Errorf("invalid token: it contains an ID other than that of the work item %q", o.WorkItemID)
	case o.TTL < time.Millisecond || o.TTL > MaxTTL:
		return fmt.Errorf("invalid TTL %s: use 1ms to %s", o.TTL, MaxTTL)
	}
	return nil
}

// WorkItems returns the open work items of the channel in the order of registration,
// channel credentials first. After ErrLost and a new Attach, a runtime compares them with
// those that it awaits, and awaits missing ones again with the same ID and Token.
func (c *Channel) WorkItems(ctx context.Context) (items []wire.OpenWorkItem, err error) {
	values, err := c.run(ctx, "items").AsStrSlice()
	chunks := slices.Collect(slices.Chunk(values, 5))
	slices.SortStableFunc(chunks, func(a, b []string) int { return cmp.Or(len(a[2])-len(b[2]), cmp.Compare(a[2], b[2])) }) // by number
	for _, v := range chunks {
		item := wire.OpenWorkItem{WorkItemID: v[0], Kind: wire.WorkItemKind(v[1]), Scope: wire.ScopeItem, Parked: v[4] == "1"}
		if v[2] == "0" {
			item.Scope = wire.ScopeChannel
		}
		var invalid error
		item.Deadline, invalid = strconv.ParseInt(v[3], 10, 64)
		items, err = append(items, item), cmp.Or(err, invalid)
	}
	return items, wrap("list work items", err)
}

// Cancel cancels a work item. Results that wait for it are received without it, a
// result that has arrived early is dropped, and a later callback is rejected. It
// fails with ErrWorkItemNotFound if the result is already on the stream or the
// item has expired.
func (c *Channel) Cancel(ctx context.Context, workItemID string) error {
	return c.do(ctx, "cancel", c.token, workItemID)
}
