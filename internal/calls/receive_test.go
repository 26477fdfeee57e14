package calls_test

import (
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// Audio is published faster than the runtime receives it. Entries of the stream
// do not wait for it.
func TestAudioDoesNotDelayEntries(t *testing.T) {
	dataDir, channels, stop := startChannels("1", "2")
	defer stop()
	runtime := connect(t, dataDir)
	defer runtime.Close()
	channel, err := runtime.Attach(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	store, err := calls.Locate("", dataDir)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rueidis.NewClient(store)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	testkit.Until(t, "the runtime has subscribed", func() bool {
		subscribers, err := client.Do(t.Context(), client.B().Publish().Channel(kv.RuntimeTopic("s")).Message(string(kv.NoticeDue)).Build()).AsInt64()
		return err == nil && subscribers == 1
	})
	published, received := 0, 0
	// flood publishes more audio than the channel queues and waits until all of
	// it, and every earlier notice, has arrived.
	flood := func() {
		t.Helper()
		const queued, excess = 256, 10
		for range queued + excess {
			if err := channels.SendAudio(t.Context(), "s", []byte(`{"type":"audio","audio":{}}`)); err != nil {
				t.Fatal(err)
			}
		}
		published += queued + excess
		testkit.Until(t, "all audio has arrived", func() bool { return channel.AudioDropped() == int64(published-received-queued) })
	}
	receive := func() string {
		t.Helper()
		d, err := channel.Receive(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case d.Entry.Kind != wire.KindFrame:
			return string(d.Entry.Kind)
		case d.Entry.Message.Type == wire.TypeAudio:
			received++
			return "audio"
		}
		return string(d.Entry.Message.Chat)
	}
	for _, want := range []string{"session", `{"text":"1"}`, `{"text":"2"}`, "audio"} {
		flood()
		if got := receive(); got != want {
			t.Errorf("received %s, want %s", got, want)
		}
	}
	sendChat(channels, "3")
	flood()
	for _, want := range []string{`{"text":"3"}`, "audio", "audio"} {
		if got := receive(); got != want {
			t.Errorf("received %s, want %s", got, want)
		}
	}
}
