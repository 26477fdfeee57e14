package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/auth"
	"telapi/internal/kv"
	"telapi/internal/ratelimit"
)

var (
	grantScript       = rueidis.NewLuaScript(kv.Script("grant")) // not retried: after a lost reply it would count twice
	saveLimitsScript  = rueidis.NewLuaScriptRetryable(kv.Script("save_limits"))
	fingerprintScript = rueidis.NewLuaScriptRetryable(kv.Script("fingerprint"))
	leaseScript       = rueidis.NewLuaScriptRetryable(kv.Script("lease"))
)

var (
	_ ratelimit.Counter     = (*Store)(nil)
	_ ratelimit.LimitsStore = (*Store)(nil)
	_ ratelimit.Granted     = (*Store)(nil)
	_ auth.Fingerprints     = (*Store)(nil)
)

// Grant implements ratelimit.Counter.
func (s *Store) Grant(ctx context.Context, key string, want, limit int64, window time.Duration) (ratelimit.Grant, error) {
	return query(ctx, s, "grant permits", func(ctx context.Context, c rueidis.Client) (grant ratelimit.Grant, err error) {
		reply, err := grantScript.Exec(ctx, c, []string{kv.RatePrefix + key}, []string{
			strconv.FormatInt(want, 10), strconv.FormatInt(limit, 10), kv.Millis(window),
		}).AsIntSlice()
		if err != nil {
			return grant, err
		}
		return ratelimit.Grant{Permits: reply[0], Remaining: reply[1], Reset: time.Duration(reply[2]) * time.Millisecond}, nil
	})
}

// Granted implements ratelimit.Granted.
func (s *Store) Granted(ctx context.Context, names []string) ([]int64, error) {
	return query(ctx, s, "read permits", func(ctx context.Context, c rueidis.Client) ([]int64, error) {
		commands := make(rueidis.Commands, len(names))
		for i, name := range names {
			commands[i] = c.B().Get().Key(kv.RatePrefix + name).Build()
		}
		granted := make([]int64, len(names))
		for i, reply := range c.DoMulti(ctx, commands...) {
			n, err := reply.AsInt64()
			if err := ignoreNil(err); err != nil {
				return nil, err
			}
			granted[i] = n
		}
		return granted, nil
	})
}

// ShareFingerprint implements auth.Fingerprints.
func (s *Store) ShareFingerprint(ctx context.Context, fingerprint string, ttl time.Duration) ([]string, error) {
	return query(ctx, s, "share fingerprint", func(ctx context.Context, c rueidis.Client) ([]string, error) {
		return fingerprintScript.Exec(ctx, c, []string{kv.FingerprintsKey}, []string{fingerprint, kv.Millis(ttl)}).AsStrSlice()
	})
}

// Limits implements ratelimit.LimitsStore.
func (s *Store) Limits(ctx context.Context) (value []byte, ok bool, err error) {
	err = s.do(ctx, "read limits", func(ctx context.Context, c rueidis.Client) (err error) {
		value, err = c.Do(ctx, c.B().Get().Key(kv.LimitsKey).Build()).AsBytes()
		if kv.ErrorCode(err) == "WRONGTYPE" {
			err = nil // reported as an empty value, which is invalid
		}
		ok = err == nil
		return ignoreNil(err)
	})
	return value, ok, err
}

// SaveLimits implements ratelimit.LimitsStore.
func (s *Store) SaveLimits(ctx context.Context, old, value []byte) (saved bool, err error) {
	return query(ctx, s, "save limits", func(ctx context.Context, c rueidis.Client) (bool, error) {
		return saveLimitsScript.Exec(ctx, c, []string{kv.LimitsKey}, []string{string(value), kv.AnnounceTopic, ratelimit.Topic, string(old)}).AsBool()
	})
}

// ignoreNil returns nil for a reply that reports a missing key or value.
func ignoreNil(err error) error {
	if rueidis.IsRedisNil(err) {
		return nil
	}
	return err
}
