package redisstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/internal/ratelimit"
	"telapi/internal/redisconn"
)

// scripts are sent by their digest, and whole to a server that does not know
// them yet.
type scripts struct {
	lease      *rueidis.Lua
	saveLimits *rueidis.Lua
	hold       *rueidis.Lua
}

func newScripts() scripts {
	return scripts{
		lease:      rueidis.NewLuaScript(lua.Script("lease")), // not retried: a lost reply would count twice
		saveLimits: rueidis.NewLuaScriptRetryable(lua.Script("save_limits")),
		hold:       rueidis.NewLuaScriptRetryable(lua.Script("hold")),
	}
}

var (
	_ ratelimit.Counter     = (*Store)(nil)
	_ ratelimit.LimitsStore = (*Store)(nil)
)

// Lease implements ratelimit.Counter.
func (s *Store) Lease(ctx context.Context, key string, want, limit int64, window time.Duration) (grant ratelimit.Grant, err error) {
	err = s.do(ctx, "lease permits", func(ctx context.Context, c rueidis.Client) error {
		reply, err := s.scripts.lease.Exec(ctx, c, []string{kv.RatePrefix + key}, []string{
			strconv.FormatInt(want, 10), strconv.FormatInt(limit, 10), strconv.FormatInt(window.Milliseconds(), 10),
		}).AsIntSlice()
		if err != nil {
			return err
		}
		if len(reply) != 3 {
			return errors.New("the script answered in another form")
		}
		grant = ratelimit.Grant{Permits: reply[0], Remaining: reply[1], Reset: time.Duration(reply[2]) * time.Millisecond}
		return nil
	})
	return grant, err
}

// Limits implements ratelimit.LimitsStore.
func (s *Store) Limits(ctx context.Context) (value []byte, ok bool, err error) {
	err = s.do(ctx, "read limits", func(ctx context.Context, c rueidis.Client) (err error) {
		value, err = c.Do(ctx, c.B().Get().Key(kv.LimitsKey).Build()).AsBytes()
		if redisconn.ErrorCode(err) == "WRONGTYPE" {
			err = nil // a bad value like any other
		}
		ok = err == nil
		return present(err)
	})
	return value, ok, err
}

// SaveLimits implements ratelimit.LimitsStore.
func (s *Store) SaveLimits(ctx context.Context, old, value []byte) (saved bool, err error) {
	err = s.do(ctx, "save limits", func(ctx context.Context, c rueidis.Client) (err error) {
		saved, err = s.scripts.saveLimits.Exec(ctx, c, []string{kv.LimitsKey},
			[]string{string(value), kv.AnnounceTopic, ratelimit.Topic, string(old)}).AsBool()
		return err
	})
	return saved, err
}

// present takes the answer "nothing there" for what it is: no error.
func present(err error) error {
	if rueidis.IsRedisNil(err) {
		return nil
	}
	return err
}
