package httpapi

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/budget"
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
	s := &socket{limits: &channel.Limits{QueuedBytes: 10}, writing: true, set: newSocketSet(prometheus.NewRegistry(), nil, nil)}
	s.SendAudio(make([]byte, 5))
	s.SendAudio(make([]byte, 1))
	if !s.Send(make([]byte, 5)) {
		t.Error("audio left no room for a message")
	}
	if dropped := metricValue(t, s.set.dropped); dropped != 1 || len(s.queue.frames) != 2 {
		t.Errorf("%v audio frames were dropped and %d frames are queued, want 1 and 2", dropped, len(s.queue.frames))
	}
}

// newQueues returns sockets that share five batches; a team may have two.
func newQueues() *socketSet {
	registry := prometheus.NewRegistry()
	return newSocketSet(registry, nil, budget.New(registry, "queued_bytes", "bytes", 5*writeBatchBytes, 40))
}

// queuingSocket returns a socket whose client does not read.
func queuingSocket(team string, set *socketSet) *socket {
	return &socket{team: team, limits: &channel.Limits{QueuedBytes: 1 << 20}, writing: true, set: set}
}

func TestTeamsShareTheMemoryForQueues(t *testing.T) {
	set := newQueues()
	first, second, third, other := queuingSocket("a", set), queuingSocket("a", set), queuingSocket("a", set), queuingSocket("b", set)
	for i, step := range []struct {
		socket *socket
		bytes  int
		want   bool
	}{
		{first, writeBatchBytes, true}, {first, 1, true}, {first, writeBatchBytes - 1, true}, // two batches, one of which is free
		{second, 2 * writeBatchBytes, true},
		{first, 1, false}, {second, 1, false}, {third, writeBatchBytes, true}, {third, 1, false},
		{other, 3 * writeBatchBytes, true},
	} {
		if got := step.socket.Send(make([]byte, step.bytes)); got != step.want {
			t.Errorf("step %d: queued %v, want %v", i, got, step.want)
		}
	}
	first.markClosed(channel.CloseSlowReader)
	if !second.Send(make([]byte, 1)) {
		t.Error("a closed socket of the team made no room")
	}
	for _, s := range []*socket{second, third, other} {
		s.markClosed(channel.CloseNormal)
	}
	if used := set.queued.Used(); used != 0 {
		t.Errorf("%d bytes are used after all sockets have ended, want 0", used)
	}
}

func TestWriteBatchIsBounded(t *testing.T) {
	s := queuingSocket("a", newQueues())
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
