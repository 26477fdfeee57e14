package demo

import (
	"bytes"
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/calls"
)

// waitingInterval is how often a feed reads what a session waits for.
const waitingInterval = time.Second

// waiting is what a session waits for: the data of an event of kind EventWaiting.
type waiting struct {
	ForRuntime bool          `json:"forRuntime"`
	WorkItems  []waitingItem `json:"workItems"` // in the order in which their results are delivered
}

// waitingItem is an open work item. Its result is parked if it waits for those of
// earlier items.
type waitingItem struct {
	ID           string            `json:"id"`
	Kind         wire.WorkItemKind `json:"kind"`
	RegisteredAt int64             `json:"registeredAt"` // Unix milliseconds, when the feed found it
	ExpiresAt    int64             `json:"expiresAt"`
	Parked       bool              `json:"parked"`
}

// watchWaiting sends what the session waits for, and again whenever that changes. It ends
// with ctx.
func (f *Feed) watchWaiting(ctx context.Context, ch *calls.Channel, events chan<- Event) {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	found := map[string]int64{} // when each work item was found
	var last []byte
	for background.Sleep(ctx, waitingInterval) == nil {
		state, err := f.readWaiting(ctx, ch, found)
		if err != nil {
			continue // the next attempt may succeed
		}
		data, err := json.Marshal(state, json.Deterministic(true))
		if err != nil || bytes.Equal(data, last) {
			continue
		}
		select {
		case events <- Event{At: time.Now().UnixMilli(), Lane: LaneService, Kind: EventWaiting, SessionID: ch.ID, Data: data}:
			last = data
		default: // the client reads slowly; the next attempt sends it
		}
	}
}

func (f *Feed) readWaiting(ctx context.Context, ch *calls.Channel, found map[string]int64) (state waiting, err error) {
	if state.ForRuntime, err = f.Unclaimed(ctx, ch.ID); err != nil {
		return state, err
	}
	open, err := ch.WorkItems(ctx)
	for _, item := range open {
		if item.Scope != wire.ScopeItem {
			continue // its results wait for nothing, and nothing waits for them
		}
		if found[item.WorkItemID] == 0 {
			found[item.WorkItemID] = time.Now().UnixMilli()
		}
		state.WorkItems = append(state.WorkItems, waitingItem{item.WorkItemID, item.Kind, found[item.WorkItemID], item.Deadline, item.Parked})
	}
	return state, err
}
