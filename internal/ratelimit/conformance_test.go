package ratelimit_test

import (
	"testing"

	"telapi/internal/ratelimit"
	"telapi/test/conformance"
)

func TestFakesConform(t *testing.T) {
	t.Run("Counter", func(t *testing.T) { conformance.Counter(t, ratelimit.NewFakeCounter(), "") })
	t.Run("LimitsStore", func(t *testing.T) { conformance.LimitsStore(t, ratelimit.NewFakeLimitsStore()) })
	t.Run("Mirror", func(t *testing.T) { conformance.Mirror(t, ratelimit.NewFakeMirror()) })
}
