package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// commandTimeout bounds every command, whatever its caller's patience.
	commandTimeout = 3 * time.Second
	// bunch is how far apart commands with the same bound may begin.
	bunch = commandTimeout / 16
)

// bounds gives commands their time, and nothing else: one that is under way
// must not end with its caller. It may be the one that dials the connection which
// others wait for, or whose deadline is laid on a connection they share.
//
// Commands that begin shortly after each other have one bound. A timer for each
// of them costs more than all else that is done here for a command.
type bounds struct{ last atomic.Pointer[bound] }

type bound struct {
	context.Context
	began time.Time
}

func (b *bounds) next() context.Context {
	now := time.Now()
	if last := b.last.Load(); last != nil && now.Sub(last.began) < bunch {
		return last
	}
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(commandTimeout))
	context.AfterFunc(ctx, cancel)
	fresh := &bound{ctx, now}
	b.last.Store(fresh)
	return fresh
}
