package runtimeapi

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
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
