package testkit_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"telapi/test/testkit"
)

// recorder keeps a failure instead of failing the test.
type recorder struct {
	testing.TB
	failure string
}

func (*recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestWithin(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // when the condition becomes true
		want  string
	}{
		"true at once":        {0, ""},
		"true before timeout": {9 * time.Second, ""},
		"true after timeout":  {11 * time.Second, "timed out after 10s waiting for: the condition"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, start := &recorder{TB: t}, time.Now()
				go testkit.Within(r, 10*time.Second, "the condition", func() bool { return time.Since(start) >= c.after })
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if r.failure != c.want {
					t.Errorf("failure is %q, want %q", r.failure, c.want)
				}
			})
		})
	}
}
