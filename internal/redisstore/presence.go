package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/session"
)

var _ session.Channels = (*Channels)(nil)

// Connected returns those of the channels that a connection owns now. A lease is
// much longer than clocks of instances and store differ.
func (c *Channels) Connected(ctx context.Context, channelIDs []string) (connected []string, err error) {
	err = c.store.do(ctx, "ask who is connected", func(ctx context.Context, client rueidis.Client) error {
		asked := make(rueidis.Commands, len(channelIDs))
		for i, id := range channelIDs {
			asked[i] = client.B().Hmget().Key(wire.ChannelKeys(id)[0]).Field("owner", "ownerUntil").Build()
		}
		for i, reply := range client.DoMulti(ctx, asked...) {
			owner, err := reply.ToArray()
			if err != nil {
				return err
			}
			name, _ := owner[0].ToString()
			ends, _ := owner[1].ToString()
			until, _ := strconv.ParseInt(ends, 10, 64)
			if name != "" && until > time.Now().UnixMilli() {
				connected = append(connected, channelIDs[i])
			}
		}
		return nil
	})
	return connected, err
}
