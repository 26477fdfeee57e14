package runtimeapi

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
)

// countingSocket is a runtime that does not read.
type countingSocket struct {
	mu     sync.Mutex
	frames []string // that are not audio
	audio  int      // frames
	idle   func()
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

func (s *countingSocket) AfterWrites(f func())    { s.idle = f }
func (s *countingSocket) SendAudio([]byte)        { s.audio++ }
func (s *countingSocket) Close(channel.CloseCode) {}

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
	if err := c.service.audioDropped.Write(&metric); err != nil {
		t.Fatal(err)
	}
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
