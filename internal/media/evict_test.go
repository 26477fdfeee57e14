package media

import (
	"fmt"
	"testing"
	"time"

	"telapi/test/testkit"
)

// In a burst of uses, each of them would otherwise write all access times again.
func TestUseOfBlobDoesNotWaitForAccessTimes(t *testing.T) {
	s := &Store{maxBytes: 1, accessTimes: accessTimes{pending: map[Path]time.Time{}}}
	for i := range maxPendingAccesses - 1 {
		s.recordAccess(Path(fmt.Sprint(i)))
	}
	s.accessTimes.flushing.Lock() // by a flush, which never ends
	s.accessTimes.beginWriting()
	recorded := make(chan struct{})
	go func() {
		s.recordAccess("next")
		close(recorded)
	}()
	select {
	case <-recorded:
	case <-time.After(testkit.Timeout):
		t.Fatal("the use of a blob waits for the flush")
	}
	if !s.accessTimes.has("0") || !s.accessTimes.has("next") {
		t.Error("a blob does not count as used before its access time is written")
	}
}
