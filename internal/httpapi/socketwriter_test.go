package httpapi

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/channel"
)

func TestSendQueueCountsFramesBeingWrittenButNotHistory(t *testing.T) {
	s := &socket{limits: channel.Limits{QueuedBytes: 10}, writing: true}
	s.Replay([][]byte{make([]byte, 100)})
	if !s.Send(make([]byte, 3), make([]byte, 3)) {
		t.Fatal("rejected frames that fit into the queue")
	}
	batch, counted := s.queue.next()
	if len(batch) != 3 || counted != 6 || s.queue.frames != nil {
		t.Fatalf("next returned %d frames with %d counted bytes and left %d queued, want 3, 6 and 0", len(batch), counted, len(s.queue.frames))
	}
	if s.Send(make([]byte, 5)) {
		t.Error("exceeded the limit while frames are being written")
	}
	if !s.Send(make([]byte, 4)) {
		t.Error("rejected a frame that fits while frames are being written")
	}
}

func TestAudioIsDroppedFirstAndCounted(t *testing.T) {
	s := &socket{limits: channel.Limits{QueuedBytes: 10}, writing: true, set: newSocketSet(prometheus.NewRegistry())}
	s.SendAudio(make([]byte, 5))
	s.SendAudio(make([]byte, 1))
	if !s.Send(make([]byte, 5)) {
		t.Error("audio left no room for a message")
	}
	if dropped := metricValue(t, s.set.dropped); dropped != 1 || len(s.queue.frames) != 2 {
		t.Errorf("%v audio frames were dropped and %d frames are queued, want 1 and 2", dropped, len(s.queue.frames))
	}
}

func TestWriteBatchIsBounded(t *testing.T) {
	s := &socket{writing: true}
	s.Replay([][]byte{make([]byte, writeBatchBytes-1), make([]byte, 2*writeBatchBytes), {}, {}})
	for _, want := range []int{2, 2, 0} {
		if batch, _ := s.queue.next(); len(batch) != want {
			t.Errorf("batch of %d frames, want %d", len(batch), want)
		}
	}
}
