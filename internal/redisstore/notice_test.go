package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// wakeups is a watcher that counts.
type wakeups chan struct{}

func (w wakeups) Wake()        { w <- struct{}{} }
func (w wakeups) Audio(string) {}

// A runtime receives small entries with their notices, and reads large ones. Reading finds
// that the store has lost an entry that came with a notice.
func TestEntriesArriveWithNotices(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	woken := make(wakeups, 10)
	c, err := s.runtime("runtime").AttachAs(t.Context(), calls.Claim{Name: "runtime", Token: "token", Watcher: woken}, s.id)
	must(t, err)
	<-woken // subscribed
	poll := func() (entries []string, err error) {
		list, again, err := c.Poll(t.Context(), 10, 1<<20, false)
		for _, d := range list {
			entries = append(entries, string(d.JSON))
		}
		if again <= 0 && err == nil {
			t.Errorf("Poll returned %q and wants to be called again at once", entries)
		}
		return entries, err
	}
	_, err = poll() // of the connection
	must(t, err)

	frame := func(text string) (entry string) {
		entry = `{"kind":"frame","text":"` + text + `"}`
		s.append("a", channel.Frame{MessageID: uuid.NewString(), Entry: jsontext.Value(entry)})
		<-woken
		return entry
	}
	first, second := frame("first"), frame("second")
	s.do("DEL", kv.RuntimeStreamKey(s.id)) // so that they cannot be read
	if got, err := poll(); err != nil || strings.Join(got, " ") != first+" "+second {
		t.Errorf("Poll returned %q, %v; want the entries of both notices", got, err)
	}
	frame(strings.Repeat("x", 8<<10))
	if got, err := poll(); !errors.Is(err, calls.ErrLost) {
		t.Errorf("Poll returned %q, %v after a loss; want ErrLost", got, err)
	}
}
