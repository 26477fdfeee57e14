package runtimeapi

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
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
	if len(c.slots) > 0 || c.service.requestBytes.Used() > 0 {
		t.Errorf("%d slots and %d bytes are in use", len(c.slots), c.service.requestBytes.Used())
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
	service.calls.Store(new(calls.Runtime))
	c, err := service.Open(Params{})
	testkit.Must(t, err)
	c.socket, c.team, c.id = socket, "team", connectionID(service.Secrets.Current, "team", rand.Text())
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
	share := c.service.requestBytes.Share()
	c.enqueue(&request{Request: wire.Request{Op: wire.OpAudio, Channel: "channel"}, run: wait, silent: true, bytes: share}) // does not wait either
	close(release)
}

// queueSends queues requests of a claimed session before one of them runs.
func queueSends(t *testing.T, requests ...string) (c *Conn, socket *countingSocket, ch *calls.Channel) {
	t.Helper()
	c, socket, cl, ch := claimedSession(t)
	c.greeted = true
	c.mustAdd(t, cl, ch)
	c.queues["s"] = &queue{working: true}
	for i, r := range requests {
		c.Handle(t.Context(), fmt.Appendf(nil, `{"id":%d,"channel":"s",%s}`, i+1, r))
	}
	return c, socket, ch
}

func sendRequest(members string, messageIDs ...string) string {
	var messages []string
	for _, id := range messageIDs {
		messages = append(messages, fmt.Sprintf(`{"messageId":%q,"type":"chat","chat":{"text":"hello"}}`, id))
	}
	return fmt.Sprintf(`%s"op":"send","messages":[%s]`, members, strings.Join(messages, ","))
}

func TestSendsThatQueueUpAreOneRequest(t *testing.T) {
	ids := newIDs(70)
	unnamed := `"op":"send","messages":[{"type":"chat","chat":{"text":"hello"}}]`
	large := fmt.Sprintf(`"op":"send","messages":[{"type":"chat","chat":{"text":%q}}]`, strings.Repeat("x", maxSentTogether))
	for name, tt := range map[string]struct {
		requests []string
		together []int
	}{
		"of several sizes":       {[]string{sendRequest("", ids[0]), sendRequest("", ids[1:3]...), sendRequest("", ids[3])}, []int{3}},
		"without message IDs":    {[]string{unnamed, unnamed}, []int{2}},
		"up to another request":  {[]string{sendRequest("", ids[0]), sendRequest("", ids[1]), `"op":"await"`, sendRequest("", ids[2])}, []int{2, 1, 1}},
		"up to 64 messages":      {[]string{sendRequest("", ids[:40]...), sendRequest("", ids[40:64]...), sendRequest("", ids[64])}, []int{2, 1}},
		"not large ones":         {[]string{sendRequest("", ids[0]), large, sendRequest("", ids[1])}, []int{1, 1, 1}},
		"not with other claims":  {[]string{sendRequest("", ids[0]), sendRequest(`"claim":"secret",`, ids[1])}, []int{1, 1}},
		"repeated one is first":  {[]string{sendRequest(`"retry":true,`, ids[0]), sendRequest("", ids[1])}, []int{2}},
		"repeated one is second": {[]string{sendRequest("", ids[0]), sendRequest(`"retry":true,`, ids[1])}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c, socket, ch := queueSends(t, tt.requests...)
			q := c.queues["s"]
			var together []int
			queued := slices.Clone(q.requests)
			for len(q.requests) > 0 {
				together = append(together, max(1, len(c.take(q).parts)))
			}
			if !slices.Equal(together, tt.together) {
				t.Errorf("take combines %v, want %v", together, tt.together)
			}
			q.requests = queued
			c.work("s", q)
			var want []string
			for _, r := range queued {
				for _, m := range r.messages {
					want = append(want, m.MessageID)
				}
				if reply := fmt.Sprintf(`{"id":%d,"ok":`, r.ID); strings.Count(socket.sent(), reply) != 1 {
					t.Errorf("want one reply %s", reply)
				}
				if ids, err := json.Marshal(r.sent().MessageIDs); err != nil || len(r.messages) > 0 && !strings.Contains(socket.sent(), string(ids)) {
					t.Errorf("no reply has the message IDs %s", ids)
				}
			}
			history, err := c.calls.History(t.Context(), ch.ID, "", 100)
			testkit.Must(t, err)
			for i, d := range history {
				if i >= len(want) || !strings.Contains(string(d.JSON), want[i]) {
					t.Errorf("message %d is %s", i, d.JSON)
				}
			}
			testkit.Equal(t, "messages in the history", len(history), len(want))
			if len(c.slots) > 0 || c.service.requestBytes.Used() > 0 {
				t.Errorf("%d slots and %d bytes are in use", len(c.slots), c.service.requestBytes.Used())
			}
		})
	}
}

// A message that was sent before the end of the channel has been sent, even if the runtime
// repeats it together with a message that comes too late.
func TestSendsTogetherAfterEndOfChannel(t *testing.T) {
	ids := newIDs(2)
	c, socket, ch := queueSends(t, sendRequest(`"retry":true,`, ids[0]), sendRequest("", ids[1]))
	testkit.Must(t, ch.Send(t.Context(), wire.ChannelMessage{MessageID: ids[0], Type: wire.TypeChat, Chat: []byte(`{"text":"hello"}`)}))
	testkit.Must(t, ch.End(t.Context(), "done"))
	c.work("s", c.queues["s"])
	if frames := socket.sent(); !strings.Contains(frames, `{"id":1,"ok":`) || !strings.Contains(frames, `{"id":2,"error":`) {
		t.Errorf("replies:\n%s", frames)
	}
}

func TestSendsTogetherAreSentOnce(t *testing.T) {
	id := newIDs(1)[0]
	c, socket, ch := queueSends(t, sendRequest("", id), sendRequest("", id))
	c.work("s", c.queues["s"])
	history, err := c.calls.History(t.Context(), ch.ID, "", 100)
	if frames := socket.sent(); err != nil || len(history) != 1 || strings.Count(frames, id) != 2 || strings.Contains(frames, "error") {
		t.Errorf("%d messages, %v, and replies:\n%s", len(history), err, frames)
	}
}

func TestSendsTogetherFailTogether(t *testing.T) {
	ids := newIDs(3)
	c, socket, _ := queueSends(t, sendRequest("", ids[0]), sendRequest("", ids[1]), `"op":"await"`, sendRequest(`"retry":true,`, ids[2]))
	for _, r := range c.queues["s"].requests[:2] {
		r.deadline = time.Now()
	}
	c.work("s", c.queues["s"])
	frames := socket.sent()
	for id, want := range map[int]string{1: "error", 2: "error", 3: "error", 4: "ok"} { // the await must not overtake them
		if !strings.Contains(frames, fmt.Sprintf(`{"id":%d,%q`, id, want)) {
			t.Errorf("no %s for request %d in\n%s", want, id, frames)
		}
	}
	if len(c.slots) > 0 || c.service.requestBytes.Used() > 0 {
		t.Errorf("%d slots and %d bytes are in use", len(c.slots), c.service.requestBytes.Used())
	}
}

func TestCommitTravelsWithSendsTogether(t *testing.T) {
	c, socket, cl, position := settledEntry(t)
	c.commitEntry(t, position)
	c.running.Wait()
	c.mu.Lock()
	q := c.queues["s"]
	q.working = true
	c.mu.Unlock()
	for i, id := range newIDs(2) {
		c.Handle(t.Context(), fmt.Appendf(nil, `{"id":%d,"channel":"s",%s}`, 3+i, sendRequest("", id)))
	}
	c.work("s", q)
	for id := 2; id <= 4; id++ {
		if !strings.Contains(socket.sent(), fmt.Sprintf(`{"id":%d,"ok"`, id)) {
			t.Errorf("no reply to request %d in\n%s", id, socket.sent())
		}
	}
	if frames := socket.sent(); strings.Index(frames, `{"id":3,"ok"`) > strings.Index(frames, `{"id":2,"ok"`) {
		t.Errorf("the commit was a script of its own, before the sends:\n%s", frames)
	}
	testkit.Equal(t, "committed", committedPosition(t, c, cl), position)
}

func newIDs(count int) (ids []string) {
	for range count {
		ids = append(ids, uuid.NewString())
	}
	return ids
}
