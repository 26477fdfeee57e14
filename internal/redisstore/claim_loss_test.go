package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// After two failovers the store can have an older claim again. The later one reports the
// messages that are gone, also those of its predecessor, and is recovered.
func TestOlderClaimIsReplaced(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	d.setField("claimRequestedAt", "1")
	restore := d.snapshot()
	attach := func(age time.Duration) *calls.Channel { // requested so long ago that the clock of the store has passed that time
		c, err := d.runtime("r").AttachAs(t.Context(), calls.Claim{Name: "r", Token: fmt.Sprint(age), RequestedAt: time.Now().Add(-age)}, d.id)
		must(t, err)
		return c
	}
	later := attach(2 * time.Minute)
	must(t, later.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value("{}")}))
	last := attach(time.Minute)
	must(t, later.CheckLoss(t.Context())) // last has the claim
	must(t, last.Commit(t.Context(), ""))
	restore()
	wantError(t, "check", last.CheckLoss(t.Context()), calls.ErrLost)
	wantError(t, "cancel with the older claim", d.Cancel(t.Context(), "other"), calls.ErrLost)
	wantError(t, "recover the older claim", errorOf(d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "older"}, d.Channel)), calls.ErrClaimLost)
	again, err := d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "again"}, last)
	must(t, err)
	must(t, again.Commit(t.Context(), ""))
	again, err = d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "again"}, last) // the reply was lost
	must(t, err)
	must(t, again.Commit(t.Context(), ""))
}

// A claim was released, and then the clock of the store was set back.
func TestReleasedClaimIsFreeWhateverTheClock(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	for _, name := range []string{"released", "revoked", "later"} {
		c := s.attachRuntime(name)
		if name == "revoked" {
			s.script("revoke", s.field(kv.MetaKey(s.id), "claimToken"))
		} else {
			must(t, c.Close(t.Context()))
		}
		s.setField("claimUntil", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()))
	}
}

// A connection of a runtime can end before it notices that the store has lost data. The
// runtime's next connection does not know of that data.
func TestLossUnderAbandonedClaimIsReported(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(d *callbackFixture){
		"work item": func(d *callbackFixture) { d.await(calls.AwaitOptions{}) },
		"message":   func(d *callbackFixture) { d.send(d.Channel, "lost") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
			s.attach("a")
			former := s.runtime("r")
			c, err := former.Attach(t.Context(), s.id)
			must(t, err)
			restore := s.snapshot()
			lose(&callbackFixture{channelFixture: s, Channel: c})
			restore()
			c.Abandon()
			next := s.attachRuntime("r")
			must(t, next.Commit(t.Context(), ""))
			former.Close()
			wantError(t, "commit", next.Commit(t.Context(), ""), calls.ErrLost)
		})
	}
}
