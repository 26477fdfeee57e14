package redisstore

import (
	"context"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
)

// Offers returns the number of offers that no runtime has accepted yet.
func (s *Store) Offers(ctx context.Context) (int64, error) {
	return query(ctx, s, "read offers", func(ctx context.Context, client rueidis.Client) (int64, error) {
		return client.Do(ctx, client.B().Xlen().Key(kv.OffersStream).Build()).AsInt64()
	})
}

// Offer implements channel.Store.
func (c *Channels) Offer(ctx context.Context, o wire.Offer) error {
	return c.store.do(ctx, "offer a session", func(ctx context.Context, client rueidis.Client) error {
		return calls.Offer(ctx, client, o, false) // unless an earlier offer waits
	})
}
