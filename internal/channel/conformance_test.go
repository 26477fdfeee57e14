package channel_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/redisstore"
	"telapi/test/embedded"
	"telapi/test/testkit"
)

// TestMemoryMatchesStore holds the fake store of this package to the behaviour of
// the embedded key-value store, as far as the other tests rely on it.
func TestMemoryMatchesStore(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (channel.Store, func(*testing.T)){
		"memory":   func(*testing.T) (channel.Store, func(*testing.T)) { return channel.NewMemory() },
		"embedded": openEmbedded,
	} {
		t.Run(name, func(t *testing.T) {
			store, send := open(t)
			attach := func(resume *channel.Cursor) channel.AttachResult {
				t.Helper()
				result, err := store.Attach(t.Context(), request(resume))
				testkit.Must(t, err)
				return result
			}
			testkit.NoError(t, "check of a new channel", store.CheckAttach(t.Context(), request(nil)))
			first := attach(nil)
			if first.Head.Epoch == "" || first.Head.ID != "" || !first.Offer || !first.TextChat || first.Recovered || len(first.Missed) != 0 {
				t.Errorf("first connection: %+v", first)
			}
			for range 3 {
				send(t)
			}
			all, complete, err := store.Since(t.Context(), channelID, first.Head)
			if err != nil || !complete || len(all) != 3 {
				t.Fatalf("since the beginning: %v, %v, %v", all, complete, err)
			}
			for i, m := range all {
				if m.Cursor.Epoch != first.Head.Epoch || !strings.HasPrefix(m.Cursor.ID, fmt.Sprint(i+1, "-")) {
					t.Errorf("message %d is at %v", i, m.Cursor)
				}
			}
			resumed := attach(&all[0].Cursor)
			if !resumed.Recovered || len(resumed.Missed) != 2 || resumed.Missed[1].Cursor != all[2].Cursor || resumed.Head != all[2].Cursor {
				t.Errorf("resumed after the first message: %+v", resumed)
			}
			if foreign := attach(&channel.Cursor{Epoch: "other", ID: "1-1"}); foreign.Recovered || len(foreign.Missed) != 0 {
				t.Errorf("resumed from another epoch: %+v", foreign)
			}
			if rest, complete, err := store.Since(t.Context(), channelID, all[2].Cursor); err != nil || !complete || len(rest) != 0 {
				t.Errorf("since the end: %v, %v, %v", rest, complete, err)
			}
		})
	}
}

const channelID = "ses_1"

func request(resume *channel.Cursor) channel.AttachRequest {
	return channel.AttachRequest{
		ChannelID: channelID, ConnectionID: "browser", Lease: time.Minute, TeamID: "t1", EndpointID: "ep", Mode: "chat",
		Entry: []byte(`{"kind":"session"}`), Resume: resume,
	}
}

func openEmbedded(t *testing.T) (channel.Store, func(*testing.T)) {
	t.Helper()
	kv := embedded.Open(t)
	option := kv.ClientOption()
	option.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	runtime, err := calls.New(calls.Options{Store: option, Name: "runtime", Lease: time.Minute})
	testkit.Must(t, err)
	t.Cleanup(runtime.Close)
	var claimed *calls.Channel
	return redisstore.NewChannels(kv, wire.DefaultChannelLimits()), func(t *testing.T) {
		if claimed == nil {
			if claimed, err = runtime.Attach(t.Context(), calls.Claim{}, channelID); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Must(t, claimed.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"hello"}`)}))
	}
}
