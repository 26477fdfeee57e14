package httpapi

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/internal/channel"
)

func TestQueueCountsWhatIsBeingWrittenButNoHistory(t *testing.T) {
	p := &pump{limits: channel.Limits{QueuedBytes: 10}, writing: true}
	p.Replay([][]byte{make([]byte, 100)})
	if !p.Send(make([]byte, 3), make([]byte, 3)) {
		t.Fatal("refused what there is room for")
	}
	together, counted := p.next()
	if len(together) != 3 || counted != 6 || p.queue != nil {
		t.Fatalf("%d frames to write, of which %d bytes count; left are %v", len(together), counted, p.queue)
	}
	if p.Send(make([]byte, 5)) {
		t.Error("took more than the bound while something is being written")
	}
	if !p.Send(make([]byte, 4)) {
		t.Error("refused what there is room for while something is being written")
	}
}

func TestAudioIsDroppedFirstAndCounted(t *testing.T) {
	p := &pump{limits: channel.Limits{QueuedBytes: 10}, writing: true, sockets: newSockets(prometheus.NewRegistry())}
	p.SendAudio(make([]byte, 5))
	p.SendAudio(make([]byte, 1))
	if !p.Send(make([]byte, 5)) {
		t.Error("audio took the room of a message")
	}
	var dropped dto.Metric
	if err := p.sockets.dropped.Write(&dropped); err != nil || dropped.GetCounter().GetValue() != 1 || len(p.queue) != 2 {
		t.Errorf("%v frames were dropped, %d are queued, %v", dropped.GetCounter().GetValue(), len(p.queue), err)
	}
}

func TestLittleIsWrittenTogether(t *testing.T) {
	p := &pump{writing: true}
	p.Replay([][]byte{make([]byte, writtenTogether-1), make([]byte, 2*writtenTogether), {}, {}})
	for _, want := range []int{2, 2, 0} {
		if together, _ := p.next(); len(together) != want {
			t.Errorf("%d frames are written together, want %d", len(together), want)
		}
	}
}
