package kv

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"telapi/test/testkit"
)

func TestErrorCodes(t *testing.T) {
	r := testkit.StartRedis(t)
	reply := func(command ...string) error { _, err := r.Do(command...); return err }
	readOnly := func() error {
		r.MustDo("REPLICAOF", "127.0.0.1", "1")
		return fmt.Errorf("operation: %w", reply("SET", "a", "b"))
	}
	for name, c := range map[string]struct {
		err       error
		code      string
		temporary bool
	}{
		"wrong type":        {reply("EVAL", "redis.call('SET', 'k', 1) redis.call('SADD', 'k', 1)", "0"), "WRONGTYPE", false},
		"missing value":     {rueidis.Nil, "", false},
		"canceled":          {context.Canceled, "", false},
		"success":           {nil, "", false},
		"read-only, nested": {readOnly(), "READONLY", true},
	} {
		if got := ErrorCode(c.err); got != c.code || IsTemporary(c.err) != c.temporary {
			t.Errorf("%s: %v has code %q, temporary %t", name, c.err, got, IsTemporary(c.err))
		}
	}
}
