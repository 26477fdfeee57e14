package redisstore

import (
	"errors"
	"testing"

	"telapi/callruntime"
	"telapi/internal/channel"
)

// The store has lost data that only one connection or runtime knows of. It is
// reported to both sides as soon as that one uses the store again, even if the
// other side has continued meanwhile.
func lossWithOneWitness(t *testing.T, opts Options) {
	t.Run("replaced connection", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		head := s.attach("a").Head
		c := s.attachRuntime("r")
		s.frame("a", "1")
		restore := s.snapshot()
		s.frame("a", "2")
		restore()
		if got := s.attach("b", resume(head)); !got.Recovered {
			t.Error("the successor was not recovered before the loss is known")
		}
		s.detach("a")
		if got := s.renew("b", false).Outcome; got != channel.Lost {
			t.Errorf("renew of the successor: %s, want %s", got, channel.Lost)
		}
		if err := c.Commit(t.Context(), "1-1"); !errors.Is(err, callruntime.ErrLost) {
			t.Errorf("the runtime got %v, want ErrLost", err)
		}
		s.attach("c", resume(head))
		s.detach("a") // knows nothing of the new epoch
		if got := s.renew("c", false).Outcome; got != channel.Owned {
			t.Errorf("renew after the loss was reported twice: %s, want %s", got, channel.Owned)
		}
	})
	t.Run("received entry", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		head := s.attach("a").Head
		c := s.attachRuntime("r")
		restore := s.snapshot()
		s.detach("a")
		s.receive(c, "disconnected")
		restore()
		if _, err := c.Receive(t.Context()); !errors.Is(err, callruntime.ErrLost) {
			t.Errorf("receive: %v, want ErrLost", err)
		}
		if got := s.attach("b", resume(head)); got.Recovered {
			t.Error("the browser resumed after a loss")
		}
	})
	t.Run("work item before the next one", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		head := s.attach("a").Head
		c := s.attachRuntime("r")
		restore := s.snapshot()
		if _, err := c.Await(t.Context(), callruntime.AwaitOptions{}); err != nil {
			t.Fatal(err)
		}
		restore()
		if _, err := c.Await(t.Context(), callruntime.AwaitOptions{}); !errors.Is(err, callruntime.ErrLost) {
			t.Errorf("await: %v, want ErrLost", err)
		}
		if got := s.attach("b", resume(head)); got.Recovered {
			t.Error("the browser resumed after a loss")
		}
		if _, err := s.runtime("other").Attach(t.Context(), s.id); !errors.Is(err, callruntime.ErrClaimed) {
			t.Errorf("attach of another runtime: %v, want ErrClaimed until the lease expires", err)
		}
		if _, err := s.runtime("r").Attach(t.Context(), s.id); err != nil {
			t.Errorf("attach again: %v", err)
		}
	})
}
