package redisconn

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Group is a consumer of a stream's consumer group.
type Group struct {
	Stream, Name, Consumer string
	// MinIdle is how long a delivered entry stays unacknowledged before another
	// read delivers it again.
	MinIdle time.Duration
}

// Read returns entries that were abandoned by a consumer, else new ones. It waits
// for up to block if there are none. The group is created if it does not exist
// and starts with the oldest entry; that call returns nothing.
func (g Group) Read(ctx context.Context, c rueidis.Client, limit int, block time.Duration) ([]rueidis.XRangeEntry, error) {
	entries, err := g.abandoned(ctx, c, limit)
	if err == nil && len(entries) == 0 {
		entries, err = g.fresh(ctx, c, limit, block)
	}
	if ErrorCode(err) == "NOGROUP" {
		return nil, g.create(ctx, c)
	}
	return entries, err
}

func (g Group) abandoned(ctx context.Context, c rueidis.Client, limit int) ([]rueidis.XRangeEntry, error) {
	reply, err := c.Do(ctx, c.B().Xautoclaim().Key(g.Stream).Group(g.Name).Consumer(g.Consumer).
		MinIdleTime(strconv.FormatInt(g.MinIdle.Milliseconds(), 10)).Start("0-0").Count(int64(limit)).Build().ToRetryable()).ToArray()
	if err != nil || len(reply) < 2 {
		return nil, err
	}
	return reply[1].AsXRange()
}

func (g Group) fresh(ctx context.Context, c rueidis.Client, limit int, block time.Duration) ([]rueidis.XRangeEntry, error) {
	read := c.B().Xreadgroup().Group(g.Name, g.Consumer).Count(int64(limit))
	var command rueidis.Completed
	if block > 0 {
		command = read.Block(block.Milliseconds()).Streams().Key(g.Stream).Id(">").Build()
	} else {
		command = read.Streams().Key(g.Stream).Id(">").Build()
	}
	streams, err := c.Do(ctx, command).AsXRead()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return streams[g.Stream], err
}

func (g Group) create(ctx context.Context, c rueidis.Client) error {
	err := c.Do(ctx, c.B().XgroupCreate().Key(g.Stream).Group(g.Name).Id("0").Mkstream().Build().ToRetryable()).Error()
	if ErrorCode(err) == "BUSYGROUP" {
		return nil // another consumer was faster
	}
	return err
}
