package httpapi

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/channel"
)

func TestSendQueueCountsFramesBeingWritten(t *testing.T) {
	s := &socket{limits: &channel.Limits{QueuedBytes: 10}, writing: true}
	if !s.Send(make([]byte, 3), make([]byte, 3)) {
		t.Fatal("rejected frames that fit into the queue")
	}
	batch, size := s.queue.next()
	if len(batch) != 2 || size != 6 || s.queue.frames != nil {
		t.Fatalf("next returned %d frames with %d bytes and left %d queued, want 2, 6 and 0", len(batch), size, len(s.queue.frames))
	}
	if s.Send(make([]byte, 5)) {
		t.Error("exceeded the limit while frames are being written")
	}
	if !s.Send(make([]byte, 4)) {
		t.Error("rejected a frame that fits while frames are being written")
	}
}

func TestAudioIsDroppedFirstAndCounted(t *testing.T) {
	s := &socket{limits: &channel.Limits{QueuedBytes: 10}, writing: true, set: newSocketSet(prometheus.NewRegistry())}
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
	s := &socket{limits: &channel.Limits{QueuedBytes: 1 << 20}, writing: true}
	s.Send(make([]byte, writeBatchBytes-1), make([]byte, 2*writeBatchBytes), []byte{}, []byte{})
	for _, want := range []int{2, 2, 0} {
		if batch, _ := s.queue.next(); len(batch) != want {
			t.Errorf("batch of %d frames, want %d", len(batch), want)
		}
	}
}

func TestLargestMessageFitsIntoEmptyQueue(t *testing.T) {
	s := &socket{limits: &channel.Limits{QueuedBytes: 10}, writing: true}
	if !s.Send(make([]byte, 11)) {
		t.Error("rejected a message with an empty queue")
	}
	if s.Send(make([]byte, 1)) {
		t.Error("exceeded the limit")
	}
}
