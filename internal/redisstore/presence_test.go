package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/channel"
	"telapi/test/testkit"
)

func presence(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	expect := func(situation string, connected ...string) {
		t.Helper()
		got, ended, err := s.channels.Presence(t.Context(), []string{uuid.NewString(), s.id, uuid.NewString()})
		if err != nil || !slices.Equal(got, connected) || len(ended) > 0 {
			t.Errorf("%s: connected %v, ended %v, %v, want %v", situation, got, ended, err, connected)
		}
	}
	expect("no connection yet")
	s.attach("first")
	expect("connected", s.id)
	s.detach("first")
	expect("after detach")
	s.attach("second", func(a *channel.AttachRequest) { a.Lease = time.Millisecond })
	testkit.Until(t, "the lease expires", func() bool {
		got, _, err := s.channels.Presence(t.Context(), []string{s.id})
		return err == nil && len(got) == 0
	})
	s.attach("third")
	if err := s.channels.EndChannel(t.Context(), s.id, "revoked"); err != nil {
		t.Fatal(err)
	}
	if got, ended, err := s.channels.Presence(t.Context(), []string{uuid.NewString(), s.id}); err != nil || len(got) > 0 || !slices.Equal(ended, []string{s.id}) {
		t.Errorf("ended channel: connected %v, ended %v, %v, want only ended", got, ended, err)
	}
	if got, ended, err := s.channels.Presence(t.Context(), nil); err != nil || len(got)+len(ended) > 0 {
		t.Errorf("empty request: connected %v, ended %v, %v, want neither", got, ended, err)
	}
}
