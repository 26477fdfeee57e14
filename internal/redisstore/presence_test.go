package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/channel"
)

func presence(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	want := func(what string, connected ...string) {
		t.Helper()
		got, err := s.channels.Connected(t.Context(), []string{uuid.NewString(), s.id, uuid.NewString()})
		if err != nil || !slices.Equal(got, connected) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, connected)
		}
	}
	want("no connection yet")
	s.attach("first")
	want("a connection", s.id)
	if err := s.channels.Detach(t.Context(), s.id, "first", s.entry("session", "disconnected")); err != nil {
		t.Fatal(err)
	}
	want("it has left")
	s.attach("second", func(a *channel.Attachment) { a.Lease = time.Millisecond })
	eventually(t, "a lease that nobody renews ends", func() bool {
		got, err := s.channels.Connected(t.Context(), []string{s.id})
		return err == nil && len(got) == 0
	})
	s.attach("third")
	if err := s.channels.EndChannel(t.Context(), s.id, "revoked"); err != nil {
		t.Fatal(err)
	}
	want("the channel has ended")
	if got, err := s.channels.Connected(t.Context(), nil); err != nil || len(got) > 0 {
		t.Errorf("nobody was asked for: %v, %v", got, err)
	}
}
