package calls

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

var offerScript = rueidis.NewLuaScriptRetryable(kv.Script("offer"))

// offer offers a session to the runtimes after its claim was released. The offer is
// empty for a channel without a session.
func (r *Runtime) offer(ctx context.Context, offer string, again bool) error {
	if offer == "" {
		return nil
	}
	var o wire.Offer
	if err := json.Unmarshal([]byte(offer), &o); err != nil {
		return fmt.Errorf("decode the offer: %w", err)
	}
	return wrapStore("offer the session", Offer(ctx, r.client, o, again))
}

// Offer offers a session to the runtimes. Unless again is set, it changes nothing if an
// earlier offer waits.
func Offer(ctx context.Context, client rueidis.Client, o wire.Offer, again bool) error {
	value, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode an offer: %w", err)
	}
	left := "" // a duration, because the store's clock may differ
	if o.ExpiresAt > 0 {
		left = kv.Millis(time.Until(time.UnixMilli(o.ExpiresAt)))
	}
	keys := []string{kv.OffersStream, kv.NewestOfferKey(o.SessionID)}
	return offerScript.Exec(ctx, client, keys, []string{string(value), left, maxOffers, kv.Flag(again)}).Error()
}
