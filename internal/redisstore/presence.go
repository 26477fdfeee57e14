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

// Presence returns which of the channels are owned by a connection, and which have
// ended. It compares leases with the local clock: they are much longer than clocks
// of instances and store differ.
func (c *Channels) Presence(ctx context.Context, channelIDs []string) (connected, ended []string, err error) {
	err = c.store.do(ctx, "read presence", func(ctx context.Context, client rueidis.Client) error {
		commands := make(rueidis.Commands, len(channelIDs))
		for i, id := range channelIDs {
			commands[i] = client.B().Hmget().Key(kv.MetaKey(id)).Field("owner", "ownerUntil", "state").Build()
		}
		for i, reply := range client.DoMulti(ctx, commands...) {
			fields, err := reply.AsStrSlice()
			if err != nil {
				return err
			}
			owner, state := fields[0], fields[2]
			until, _ := strconv.ParseInt(fields[1], 10, 64)
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
