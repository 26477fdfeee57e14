//go:build !race

package redact

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"telapi/test/testkit"
)

// The time to mask numbers grows with the length of a text, not with its square, which
// would be 32 times more. It is the CPU time of one thread, so that other programs hardly
// matter; four times more than linear is still accepted, and so are 40 ms, since some
// systems count in steps of 10 ms. The race detector would only make it slow: nothing runs
// concurrently.
func TestMaskingTimeGrowsLinearly(t *testing.T) {
	const short, growth, tolerance = 512, 32, 4
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var usage syscall.Rusage
		testkit.Must(t, syscall.Getrusage(syscall.RUSAGE_THREAD, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	cost := func(text string, times int) time.Duration {
		start := used()
		for range times {
			maskPhones(text, "", 4)
		}
		return used() - start
	}
	for _, part := range []string{
		"1", "(", "+", "1 ", "1-", "+1(", "0 1-", "(1", "((1", "%2b", "%2b1", "1/1/", "1.", "a", "a1-", "12345678 ", "123 ",
		"+4930123456 ", "tel:+4930123456;", "from 12345678 ", "caller=", "[1, ", `"to":"`, "12:", "123e4567-e89b-12d3-a456-426614174000", "1234567-",
	} {
		text := strings.Repeat(part, short*growth/len(part))
		long := cost(text, 1)
		if long <= tolerance*10*time.Millisecond {
			continue
		}
		linear := min(cost(text[:short], growth), cost(text[:short], growth))
		if long = min(long, cost(text, 1), cost(text, 1)); long > tolerance*linear {
			t.Errorf("%q: %s for a text of %d bytes, and %s for the same bytes in %d parts", part, long, len(text), linear, growth)
		}
	}
}
