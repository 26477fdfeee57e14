package calls

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"telapi/internal/kv"
)

const (
	sweepBatch   = 16 // expired connections per call
	sweepAtATime = 64 // claims that are released at a time

	replaced = "replaced" // among the claims of a connection; see the script claims
)

var (
	connectionsScript = rueidis.NewLuaScriptRetryable(kv.Script("connections"))
	expiredScript     = rueidis.NewLuaScriptRetryable(kv.Script("is_expired"))
	claimsScript      = rueidis.NewLuaScriptRetryable(kv.Script("claims"))
)

// Lifetime is how long a connection of a runtime lives from now on.
type Lifetime struct {
	ConnectionID string
	Left         time.Duration
}

// KeepConnections sets the lifetimes of connections. It returns those that the store did
// not know, and some that have expired, for Sweep. An instance calls it again before the
// lifetimes end, so that the claims of its connections are released when it dies.
func (r *Runtime) KeepConnections(ctx context.Context, list ...Lifetime) (unknown, expired []string, err error) {
	args := make([]string, 1, 1+2*len(list))
	args[0] = strconv.Itoa(sweepBatch)
	for _, c := range list {
		args = append(args, c.ConnectionID, kv.Millis(c.Left))
	}
	reply, err := connectionsScript.Exec(ctx, r.client, []string{kv.ConnectionsKey}, args).ToArray()
	if err != nil {
		return nil, nil, fmt.Errorf("keep connections: %w", err)
	}
	if unknown, err = reply[0].AsStrSlice(); err == nil {
		expired, err = reply[1].AsStrSlice()
	}
	return unknown, expired, err
}

// RecordClaims records that a connection is about to make claims, so that Sweep finds them. Each of
// claims is the ID of a channel, a slash and a secret: a connection can claim a channel again before
// ForgetClaim has removed its former claim. The tokens of the claims must start with the ID of the
// connection. RecordClaims fails with ErrReplaced after Replace.
func (r *Runtime) RecordClaims(ctx context.Context, connectionID string, claims ...string) error {
	isReplaced, err := claimsScript.Exec(ctx, r.client, []string{kv.ClaimsKey(connectionID)}, claims).AsBool()
	if err == nil && isReplaced {
		return ErrReplaced
	}
	return wrapStore("record claims", err)
}

// ForgetClaim records that a connection does not have a claim any more.
func (r *Runtime) ForgetClaim(ctx context.Context, connectionID, claim string) {
	// A claim too many does no harm.
	r.client.Do(ctx, r.client.B().Srem().Key(kv.ClaimsKey(connectionID)).Member(claim).Build())
}

// Replace is Sweep for a connection whose runtime has another one. RecordClaims fails from then on:
// an instance that has not noticed the end of the connection would make claims that the runtime
// does not learn of.
func (r *Runtime) Replace(ctx context.Context, connectionID string) error {
	if err := claimsScript.Exec(ctx, r.client, []string{kv.ClaimsKey(connectionID)}, []string{replaced}).Error(); err != nil {
		return wrapStore("replace a connection", err)
	}
	return r.releaseAll(ctx, connectionID)
}

// Sweep releases the claims of an expired connection and offers its sessions. Claims that
// another connection has resumed are kept. It does nothing if the lifetime was extended since.
func (r *Runtime) Sweep(ctx context.Context, connectionID string) error {
	expired, err := expiredScript.Exec(ctx, r.client, []string{kv.ConnectionsKey}, []string{connectionID}).AsBool()
	if err != nil || !expired {
		return wrapStore("check a connection", err)
	}
	if err = r.releaseAll(ctx, connectionID); err == nil {
		err = wrap("forget claims", r.client.Do(ctx, r.client.B().Del().Key(kv.ClaimsKey(connectionID)).Build()).Error())
	}
	return err
}

// releaseAll releases the claims of a connection and forgets the connection.
func (r *Runtime) releaseAll(ctx context.Context, connectionID string) error {
	claims, err := r.client.Do(ctx, r.client.B().Smembers().Key(kv.ClaimsKey(connectionID)).Build()).AsStrSlice()
	if err != nil {
		return wrap("list claims", err)
	}
	var revoking errgroup.Group
	revoking.SetLimit(sweepAtATime)
	for _, claim := range claims {
		if claim == replaced {
			continue
		}
		revoking.Go(func() error {
			id, _, _ := strings.Cut(claim, "/")
			_, err := r.revoke(ctx, id, connectionID)
			if err == nil {
				r.ForgetClaim(ctx, connectionID, claim) // a repetition after a failure need not release it again
			}
			return err
		})
	}
	if err := revoking.Wait(); err != nil {
		return wrap("release claims", err)
	}
	return wrap("forget a connection", r.client.Do(ctx, r.client.B().Zrem().Key(kv.ConnectionsKey).Member(connectionID).Build()).Error())
}
