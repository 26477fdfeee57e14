package kv

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by this digest
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/background"
)

const (
	// waitMargin is the time between the end of WAIT and the deadline of its caller.
	waitMargin = 200 * time.Millisecond
	// maxWait is the timeout of WAIT if the caller has no deadline.
	maxWait = 3 * time.Second
	// redirectDelay limits how often a command follows nodes that disagree.
	redirectDelay = 10 * time.Millisecond
	// markerTTL is the lifetime of ReplicatedKey.
	markerTTL = 10 * time.Second
	// maxWaiting is the maximum number of scripts that wait for replicas at the same time.
	// It is smaller than the client's pool, which would let further ones wait for ever.
	maxWaiting = 512
)

// ErrNotReplicated is returned if too few replicas confirmed a write in time. The
// write may survive a failover or not.
var ErrNotReplicated = errors.New("not enough replicas confirmed the write")

// ReplicatedScript is a script whose writes are confirmed by replicas.
type ReplicatedScript struct {
	text, digest string
	replicas     int
	waiting      chan struct{} // has a value for each running script; shared by all
}

// ReplicatedScripts returns channel scripts by their names. It returns nil if no
// replica has to confirm them.
func ReplicatedScripts(replicas int, names ...string) map[string]*ReplicatedScript {
	if replicas <= 0 {
		return nil
	}
	scripts, waiting := make(map[string]*ReplicatedScript, len(names)), make(chan struct{}, maxWaiting)
	for _, name := range names {
		text := Script(name)
		digest := sha1.Sum([]byte(text)) //nolint:gosec // see the import
		scripts[name] = &ReplicatedScript{text, hex.EncodeToString(digest[:]), replicas, waiting}
	}
	return scripts
}

// Exec runs the script on a channel and returns its reply after the replicas have
// confirmed it. It fails with ErrNotReplicated shortly before the deadline of ctx.
//
// It uses a separate connection, because WAIT covers the writes of its connection
// and delays the commands behind it. It also writes ReplicatedKey: if the script
// finds that an earlier run did its work, and writes nothing, WAIT covers that run
// too.
func (s *ReplicatedScript) Exec(ctx context.Context, c rueidis.Client, channelID string, args []string) rueidis.RedisResult {
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
	case <-ctx.Done():
		return rueidis.NewErrorResult(ctx.Err())
	}
	node := c
	withText := false // send the script's text instead of its digest
	asking := false   // the node is importing the slot
	for {
		result := s.run(ctx, node, channelID, args, withText, asking)
		reply, ok := rueidis.IsRedisErr(result.Error())
		if !ok {
			return result
		}
		moved, isMoved := reply.IsMoved()
		ask, isAsk := reply.IsAsk()
		switch {
		case reply.IsNoScript() && !withText:
			withText = true
			continue
		case isMoved:
			node, asking = c.Nodes()[moved], false
		case isAsk:
			node, asking = c.Nodes()[ask], true
		default:
			return result
		}
		if node == nil { // the client does not know it yet
			node, asking = c, false
		}
		if background.Sleep(ctx, redirectDelay) != nil {
			return result
		}
	}
}

// run runs the script once, on one node.
func (s *ReplicatedScript) run(ctx context.Context, node rueidis.Client, channelID string, args []string, withText, asking bool) (result rueidis.RedisResult) {
	_ = node.Dedicated(func(conn rueidis.DedicatedClient) error {
		keys := ChannelKeys(channelID)
		name, script := "EVALSHA", s.digest
		if withText {
			name, script = "EVAL", s.text
		}
		commands := rueidis.Commands{
			conn.B().Arbitrary(name, script, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Build(),
			conn.B().Set().Key(ReplicatedKey(channelID)).Value("").Px(markerTTL).Build(),
			wait(ctx, conn, s.replicas),
		}
		first := 0
		if asking { // applies to the next command only
			first = 1
			commands = rueidis.Commands{conn.B().Asking().Build(), commands[0], conn.B().Asking().Build(), commands[1], commands[2]}
		}
		replies := conn.DoMulti(ctx, commands...)
		result = replies[first]
		if result.Error() != nil && !rueidis.IsRedisNil(result.Error()) {
			return nil
		}
		if err := checkReplicas(replies[len(replies)-1], s.replicas); err != nil {
			result = rueidis.NewErrorResult(err)
		}
		return nil
	})
	return result
}

// wait returns the command that waits for replicas, until shortly before the deadline of ctx.
func wait(ctx context.Context, conn rueidis.DedicatedClient, replicas int) rueidis.Completed {
	timeout := maxWait
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Millisecond, time.Until(deadline)-waitMargin)
	}
	return conn.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build()
}

// checkReplicas checks the reply to WAIT.
func checkReplicas(reply rueidis.RedisResult, replicas int) error {
	confirmed, err := reply.AsInt64()
	switch {
	case err != nil: // for example because the node has become a replica
		return fmt.Errorf("%w: %s", ErrNotReplicated, err.Error())
	case confirmed < int64(replicas):
		return fmt.Errorf("%w: %d of %d", ErrNotReplicated, confirmed, replicas)
	}
	return nil
}

// WaitForReplicas waits until replicas have confirmed the earlier writes to the node of a key, which
// it writes. If it fails, they may survive a failover or not.
func WaitForReplicas(ctx context.Context, c rueidis.Client, replicas int, key string) error {
	if replicas <= 0 {
		return nil
	}
	return c.Dedicated(func(conn rueidis.DedicatedClient) error {
		replies := conn.DoMulti(ctx, conn.B().Set().Key(key).Value("").Px(markerTTL).Build(), wait(ctx, conn, replicas))
		if err := replies[0].Error(); err != nil {
			return err
		}
		return checkReplicas(replies[1], replicas)
	})
}
