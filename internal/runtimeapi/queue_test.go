package runtimeapi

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// A request that could not be run is repeated by the runtime. Those that it has sent before
// it read of the failure must not overtake it, even if they arrive later.
func TestRequestsBehindUnavailableOneFail(t *testing.T) {
	c, socket := newConn(t)
	c.claims["channel"] = c.newClaim("channel", "secret")
	var ran []int64
	send := func(id int64, op wire.Op, retry bool, err error) {
		c.enqueue(&request{Request: wire.Request{ID: id, Op: op, Channel: "channel", Retry: retry}, bytes: 1, run: func(context.Context) (any, error) {
			ran = append(ran, id)
			return nil, err
		}})
	}
	unavailable := fault.Unavailable("The key-value store", nil)
	send(1, wire.OpSend, false, unavailable)
	send(2, wire.OpSend, false, nil)
	c.running.Wait()
	send(3, wire.OpEnd, false, nil)
	send(4, wire.OpCommit, false, nil)
	send(1, wire.OpSend, true, unavailable)
	send(2, wire.OpSend, false, nil)
	c.running.Wait()
	send(1, wire.OpSend, true, nil)
	send(2, wire.OpSend, false, nil)
	send(3, wire.OpEnd, false, nil)
	c.running.Wait()
	frames := strings.Join(socket.frames, "\n")
	if !slices.Equal(ran, []int64{1, 4, 1, 1, 2, 3}) || strings.Count(frames, `"code":"SERVICE_UNAVAILABLE"`) != 5 {
		t.Errorf("ran %v; replies:\n%s", ran, frames)
	}
	if len(c.slots) > 0 || c.service.requests.Used() > 0 {
		t.Errorf("%d slots and %d bytes are in use", len(c.slots), c.service.requests.Used())
	}
}

func TestDrainDoesNotWaitForTheStartOfAConnection(t *testing.T) {
	starting := &Conn{}
	starting.Drain(0) // it has no socket yet
	c, socket := newConn(t)
	c.Drain(2 * time.Second)
	if frames := strings.Join(socket.frames, "\n"); frames != `{"event":"drain","withinMs":2000}` {
		t.Error(frames)
	}
}

// countingSocket is a runtime that does not read.
type countingSocket struct {
	mu     sync.Mutex
	frames []string // that are not audio
	audio  int      // frames
	idle   func()
	code   channel.CloseCode // of the last Close
}

// sent returns the frames that are not audio, one in a line.
func (s *countingSocket) sent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.frames, "\n")
}

func (s *countingSocket) Send(frames ...[]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, frame := range frames {
		s.frames = append(s.frames, string(frame))
	}
	return true
}

func (s *countingSocket) AfterWrites(f func())         { s.idle = f }
func (s *countingSocket) SendAudio([]byte)             { s.audio++ }
func (s *countingSocket) Close(code channel.CloseCode) { s.code = code }

func newConn(t *testing.T) (*Conn, *countingSocket) {
	t.Helper()
	service := New(Deps{TeamShare: 50, Registry: prometheus.NewRegistry()})
	socket := &countingSocket{}
	c := service.conn(nil, Params{})
	c.socket, c.team, c.id = socket, "team", service.connectionID("team", rand.Text())
	t.Cleanup(func() { markClosed(c); c.cancel(); c.running.Wait() }) // nothing starts while it waits
	return c, socket
}

func droppedAudio(t *testing.T, c *Conn) float64 {
	t.Helper()
	var metric dto.Metric
	testkit.Must(t, c.service.audioDropped.Write(&metric))
	return metric.GetCounter().GetValue()
}

func TestAudioIsDroppedWhileEntriesWait(t *testing.T) {
	c, socket := newConn(t)
	cl := c.newClaim("channel", "secret")
	cl.started, c.claims["channel"] = true, cl
	cl.Audio(`{}`)
	if socket.audio != 1 {
		t.Fatalf("%d audio frames were sent, want 1", socket.audio)
	}
	c.unsent = pauseBytes + 1 // the runtime did not read the last entries
	cl.Wake()
	c.running.Wait()
	cl.Audio(`{}`)
	if dropped := droppedAudio(t, c); socket.audio != 1 || dropped != 1 || socket.idle == nil {
		t.Errorf("%d audio frames were sent and %v dropped, want 1 and 1", socket.audio, dropped)
	}
}

func TestAudioOfRuntimeLeavesRoomForRequests(t *testing.T) {
	c, _ := newConn(t)
	release := make(chan struct{})
	wait := func(context.Context) (any, error) { <-release; return nil, nil }
	for range maxRequests {
		c.enqueue(&request{Request: wire.Request{Op: wire.OpAudio, Channel: "channel"}, run: wait, silent: true, bytes: 1})
	}
	if dropped := droppedAudio(t, c); len(c.slots) != maxRequests/2 || dropped != maxRequests/2 {
		t.Errorf("%d audio frames are queued and %v dropped, want half of %d each", len(c.slots), dropped, maxRequests)
	}
	for range maxRequests / 2 {
		c.enqueue(&request{Request: wire.Request{Channel: "channel"}, run: wait, silent: true, bytes: 1}) // does not wait
	}
	share := c.service.requests.Share()
	c.enqueue(&request{Request: wire.Request{Op: wire.OpAudio, Channel: "channel"}, run: wait, silent: true, bytes: share}) // does not wait either
	close(release)
}
