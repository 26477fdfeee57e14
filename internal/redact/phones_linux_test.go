package redact

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The time to mask numbers grows with the length of a text, not with its square, which
// would be 32 times more. It is the CPU time of one thread, so that other programs hardly
// matter; four times more than linear is still accepted, and so are 40 ms, since some
// systems count in steps of 10 ms.
func TestMaskingTimeGrowsLinearly(t *testing.T) {
	const short, growth, tolerance = 512, 32, 4
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	// cost returns the shortest of several times, each for growth short texts or a long one.
	cost := func(text string, times int) time.Duration {
		shortest := time.Hour
		for range 3 {
			start := used()
			for range times {
				maskPhones(text, "", 4)
			}
			shortest = min(shortest, used()-start)
		}
		return shortest
	}
	for _, part := range []string{
		"1", "(", "+", "1 ", "1-", "+1(", "0 1-", "(1", "((1", "%2b", "%2b1", "1/1/", "1.", "a", "a1-", "12345678 ", "123 ",
		"+4930123456 ", "tel:+4930123456;", "from 12345678 ", "caller=", "[1, ", `"to":"`, "12:", "123e4567-e89b-12d3-a456-426614174000", "1234567-",
	} {
		text := strings.Repeat(part, short*growth/len(part))
		linear, long := cost(text[:short], growth), cost(text, 1)
		if long > tolerance*max(linear, 10*time.Millisecond) {
			t.Errorf("%q: %s for a text of %d bytes, and %s for the same bytes in %d parts", part, long, len(text), linear, growth)
		}
	}
}
