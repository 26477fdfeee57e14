package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/lua"
)

// maxOffers bounds the stream of offers while no runtime takes any. Sessions that
// are still unclaimed are offered again.
const maxOffers = 100_000

var offerScript = rueidis.NewLuaScriptRetryable(lua.Script("offer"))

// Offers returns the number of offers that no runtime has accepted yet, and of the
// consumer groups that read them.
func (s *Store) Offers(ctx context.Context) (offers int64, groups int, err error) {
	err = s.do(ctx, "read offers", func(ctx context.Context, client rueidis.Client) error {
		exists, err := client.Do(ctx, client.B().Exists().Key(kv.OffersStream).Build()).AsBool()
		if err != nil || !exists {
			return err
		}
		list, err := client.Do(ctx, client.B().XinfoGroups().Key(kv.OffersStream).Build()).ToArray()
		if err != nil {
			return err
		}
		groups = len(list)
		offers, err = client.Do(ctx, client.B().Xlen().Key(kv.OffersStream).Build()).AsInt64()
		return err
	})
	return offers, groups, err
}

// Offer implements channel.Store.
func (c *Channels) Offer(ctx context.Context, o wire.Offer) error {
	value, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode an offer: %w", err)
	}
	left := "" // a duration, because the store's clock may differ
	if o.ExpiresAt > 0 {
		left = millis(time.Until(time.UnixMilli(o.ExpiresAt)))
	}
	return c.store.do(ctx, "offer a session", func(ctx context.Context, client rueidis.Client) error {
		keys := []string{kv.OffersStream, kv.NewestOfferKey(o.SessionID)}
		return offerScript.Exec(ctx, client, keys, []string{string(value), left, strconv.Itoa(maxOffers)}).Error()
	})
}
