package harness

import (
	"context"
	"errors"

	"telapi/callruntime"
)

// Call is what a simulated call runtime does on a channel.
type Call interface {
	// Handle handles an entry, or an audio frame, which has no position. It returns
	// whether to commit the entry, with all before it.
	Handle(ctx context.Context, d callruntime.Delivery) (commit bool, err error)
	// Lost is called when the store has lost data of the channel. Entries that were
	// handled may follow again.
	Lost(ctx context.Context) error
}

// RunCall serves a channel until it ends, the claim is lost or ctx ends. It returns the
// reason.
func RunCall(ctx context.Context, ch *callruntime.Channel, call Call) error {
	for {
		d, err := ch.Receive(ctx)
		var commit bool
		switch {
		case errors.Is(err, callruntime.ErrLost):
			err = call.Lost(ctx)
		case err == nil:
			commit, err = call.Handle(ctx, d)
		}
		if err == nil && commit {
			err = ch.Commit(ctx, d.Position)
		}
		if err != nil && !errors.Is(err, callruntime.ErrNotFound) { // then Receive returns ErrClaimLost
			return err
		}
	}
}
