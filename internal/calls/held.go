package calls

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
)

const (
	// heldTTL is how long the list of a runtime's channels outlives its last claim.
	heldTTL = 7 * 24 * time.Hour
	// heldMargin is the age from which Channels removes a channel that the runtime
	// has not claimed: a younger one may be about to be claimed.
	heldMargin = time.Hour
	// heldTimeout bounds the update of the list. A claim does not depend on it.
	heldTimeout = time.Second
)

// Channels returns the IDs of the channels that runtimes with this name have
// claimed and neither released nor drained, in the order of the claims. A
// restarted runtime attaches to them. It can fail to list a channel if the store
// was unavailable at the time of its claim.
func (r *Runtime) Channels(ctx context.Context) (ids []string, err error) {
	key := kv.RuntimeKey(r.opts.Name)
	listed, err := r.client.Do(ctx, r.client.B().Zrange().Key(key).Min("0").Max("-1").Withscores().Build()).AsZScores()
	if err != nil {
		return nil, wrap("list channels", err)
	}
	commands := make(rueidis.Commands, len(listed))
	for i, item := range listed {
		commands[i] = r.client.B().Hget().Key(kv.MetaKey(item.Member)).Field("claimedBy").Build()
	}
	var stale []string
	for i, reply := range r.client.DoMulti(ctx, commands...) {
		holder, err := reply.ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, wrap("list channels", err)
		}
		if holder == r.opts.Name {
			ids = append(ids, listed[i].Member)
		} else if time.Since(time.UnixMilli(int64(listed[i].Score))) > heldMargin {
			stale = append(stale, listed[i].Member)
		}
	}
	if len(stale) > 0 {
		err = r.client.Do(ctx, r.client.B().Zrem().Key(key).Member(stale...).Build()).Error()
	}
	return ids, wrap("list channels", err)
}

// hold adds a channel to the list of Channels. It is called before the claim, so
// that a crash leaves a channel too many rather than one too few: the list is in
// another slot of a cluster and cannot change together with the claim.
func (r *Runtime) hold(ctx context.Context, channelID string) {
	key, now := kv.RuntimeKey(r.opts.Name), float64(time.Now().UnixMilli())
	r.updateHeld(ctx,
		r.client.B().Zadd().Key(key).ScoreMember().ScoreMember(now, channelID).Build(),
		r.client.B().Expire().Key(key).Seconds(int64(heldTTL/time.Second)).Build())
}

// drop removes a channel from the list of Channels.
func (r *Runtime) drop(ctx context.Context, channelID string) {
	r.updateHeld(ctx, r.client.B().Zrem().Key(kv.RuntimeKey(r.opts.Name)).Member(channelID).Build())
}

func (r *Runtime) updateHeld(ctx context.Context, commands ...rueidis.Completed) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	r.client.DoMulti(ctx, commands...)
}
