package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/session"
)

var _ session.Channels = (*Channels)(nil)

// Presence tells which of the channels a connection owns now, and which have
// ended. A lease is much longer than clocks of instances and store differ.
func (c *Channels) Presence(ctx context.Context, channelIDs []string) (connected, ended []string, err error) {
	err = c.store.do(ctx, "ask who is connected", func(ctx context.Context, client rueidis.Client) error {
		asked := make(rueidis.Commands, len(channelIDs))
		for i, id := range channelIDs {
			asked[i] = client.B().Hmget().Key(kv.MetaKey(id)).Field("owner", "ownerUntil", "state").Build()
		}
		for i, reply := range client.DoMulti(ctx, asked...) {
			known, err := reply.ToArray()
			if err != nil {
				return err
			}
			owner, _ := known[0].ToString()
			ends, _ := known[1].ToString()
			until, _ := strconv.ParseInt(ends, 10, 64)
			state, _ := known[2].ToString()
			switch {
			case state == "ended":
				ended = append(ended, channelIDs[i])
			case owner != "" && until > time.Now().UnixMilli():
				connected = append(connected, channelIDs[i])
			}
		}
		return nil
	})
	return connected, ended, err
}
