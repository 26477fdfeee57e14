package socket

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/test/testkit"
)

// channelStore is a fake channel.Store and channel.Sessions that accepts every
// connection.
type channelStore struct {
	channel.Store
	channel.Sessions
}

func (channelStore) Attach(context.Context, channel.AttachRequest) (channel.AttachResult, error) {
	return channel.AttachResult{}, nil
}
func (channelStore) Detach(context.Context, channel.Owner, []byte) error { return nil }
func (channelStore) Subscribe(context.Context, string, channel.Subscriber) (func(), error) {
	return func() {}, nil
}
func (channelStore) Redeem(context.Context, string) error { return nil }
func (channelStore) Touch(string)                         {}

// newSocketServer returns a set, its channels, and a handler that opens a socket for every
// request.
func newSocketServer(t *testing.T, store channel.Store, lifetime time.Duration) (*Set, *channel.Service, http.HandlerFunc) {
	t.Helper()
	registry := prometheus.NewRegistry()
	limits := channel.ConnectionLimits{PingIntervalMs: 60_000, FrameBytes: 1 << 10, QueuedBytes: 1 << 20, FramesPerSecond: 10, AudioBytesPerSecond: 1 << 20}
	channels := channel.NewService(store, channelStore{}, limits, "", slog.New(slog.DiscardHandler), registry)
	set := NewSet(registry, ratelimit.NewBudget(registry, "sockets", "WebSockets", 100, 100), ratelimit.NewBudget(registry, "queued_bytes", "bytes", QueueBudget, 100))
	return set, channels, func(w http.ResponseWriter, r *http.Request) {
		info := channel.SessionInfo{Offer: wire.Offer{SessionID: "ses_1"}, ExpiresAt: time.Now().Add(lifetime)}
		x := &httpserve.Response{ResponseWriter: w, Request: r}
		err := set.Upgrade(x, r, Options{Session: "ses_1", Limits: channels.Limits()}, func(ctx context.Context) (Connection, error) {
			return channels.Open(ctx, info, "", "")
		})
		if err != nil || x.Err != nil {
			t.Errorf("upgrade: %v, %v", err, x.Err)
		}
	}
}

// serveSockets returns a set with a server that opens a socket for every request, and a
// function that connects to it.
func serveSockets(t *testing.T, lifetime time.Duration) (*Set, func() *websocket.Conn) {
	t.Helper()
	s, _, handler := newSocketServer(t, channelStore{}, lifetime)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return s, func() *websocket.Conn {
		t.Helper()
		ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
		testkit.Must(t, err)
		t.Cleanup(func() { _ = ws.Close() })
		return ws
	}
}

// readToEnd reads from a client's socket until it is closed and returns the error.
func readToEnd(ws *websocket.Conn) (err error) {
	_ = ws.SetReadDeadline(time.Now().Add(30 * time.Second))
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	return err
}

func TestSocketOfExpiredSessionIsClosed(t *testing.T) {
	s, dial := serveSockets(t, 0)
	defer s.Close()
	for range 20 {
		if err := readToEnd(dial()); !websocket.IsCloseError(err, int(channel.CloseExpired)) {
			t.Errorf("closed with %v, want close code %d", err, channel.CloseExpired)
		}
	}
}

// dialReady connects and waits for the ready frame. After it, the server's socket
// is running.
func dialReady(t *testing.T, dial func() *websocket.Conn) *websocket.Conn {
	t.Helper()
	ws := dial()
	if _, _, err := ws.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	return ws
}

func TestShutdownClosesSocketsWithRestart(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	ws := dialReady(t, dial)
	var shutdown sync.WaitGroup
	shutdown.Go(func() {
		s.Drain(t.Context(), time.Millisecond)
		s.Close()
	})
	if err := readToEnd(ws); !websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("closed with %v, want close code %d", err, channel.CloseRestart)
	}
	shutdown.Wait()
	if n, used := testkit.MetricValue(t, s.open), s.budget.Used(); n != 0 || used != 0 {
		t.Errorf("%v sockets are open and %d in the budget after shutdown, want 0", n, used)
	}
}

// A handshake may end after the drain has started.
func TestSocketOpenedDuringDrainIsClosed(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	s.Drain(t.Context(), 0)
	if err := readToEnd(dial()); !websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("during the drain: closed with %v, want close code %d", err, channel.CloseRestart)
	}
	s.Close()
	if s.begin() {
		t.Error("after close: a handshake started, want none")
	}
	testkit.Equal(t, "sockets are open", testkit.MetricValue(t, s.open), 0)
}

func TestShutdownDisconnectsSocketsAtItsDeadline(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	ws := dialReady(t, dial)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Drain(ctx, time.Hour)
	s.Close()
	if err := readToEnd(ws); websocket.IsCloseError(err, int(channel.CloseRestart)) {
		t.Errorf("closed with %v, want a disconnect without a close frame", err)
	}
	testkit.Equal(t, "sockets are open after shutdown", testkit.MetricValue(t, s.open), 0)
}

func TestSendQueueCountsFramesBeingWritten(t *testing.T) {
	s := &socket{Options: Options{Limits: &channel.ConnectionLimits{QueuedBytes: 10}}, writing: true}
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
	s := &socket{Options: Options{Limits: &channel.ConnectionLimits{QueuedBytes: 10}}, writing: true, set: NewSet(prometheus.NewRegistry(), nil, nil)}
	s.SendAudio(make([]byte, 5))
	s.SendAudio(make([]byte, 1))
	if !s.Send(make([]byte, 5)) {
		t.Error("audio left no room for a message")
	}
	if dropped := testkit.MetricValue(t, s.set.dropped); dropped != 1 || len(s.queue.frames) != 2 {
		t.Errorf("%v audio frames were dropped and %d frames are queued, want 1 and 2", dropped, len(s.queue.frames))
	}
}

// newQueues returns sockets that share five batches; a team may have two.
func newQueues() *Set {
	registry := prometheus.NewRegistry()
	return NewSet(registry, nil, ratelimit.NewBudget(registry, "queued_bytes", "bytes", 5*writeBatchBytes, 40))
}

// queuingSocket returns a socket whose client does not read.
func queuingSocket(team string, set *Set) *socket {
	return &socket{Options: Options{Holder: team, Limits: &channel.ConnectionLimits{QueuedBytes: 1 << 20}}, writing: true, set: set}
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
		testkit.Equal(t, fmt.Sprintf("step %d: queued", i), step.socket.Send(make([]byte, step.bytes)), step.want)
	}
	first.markClosed(channel.CloseSlowReader)
	if !second.Send(make([]byte, 1)) {
		t.Error("a closed socket of the team made no room")
	}
	for _, s := range []*socket{second, third, other} {
		s.markClosed(channel.CloseNormal)
	}
	testkit.Equal(t, "bytes are used after all sockets have ended", set.queued.Used(), 0)
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
	s := &socket{Options: Options{Limits: &channel.ConnectionLimits{QueuedBytes: 10}}, writing: true}
	if !s.Send(make([]byte, 11)) {
		t.Error("rejected a message with an empty queue")
	}
	if s.Send(make([]byte, 1)) {
		t.Error("exceeded the limit")
	}
}

// counted returns a budget without limits, and counters of its frames.
func counted() (f *frameBudget, all func() int, empty *int) {
	empty = new(int)
	f = newFrameBudget(&channel.ConnectionLimits{FramesPerSecond: 1 << 20, FrameBytes: 1 << 20}, func() bool { *empty++; return true })
	f.frames.SetLimit(1e-9) // no token returns
	return f, func() int { return f.frames.Burst() - int(f.frames.TokensAt(time.Now())) }, empty
}

func TestFrameBudgetCountsFrames(t *testing.T) {
	const key = "mask"
	large := strings.Repeat("x", 70_000)
	for name, c := range map[string]struct {
		data       string
		all, empty int
	}{
		"text":              {"\x81\x85" + key + "hello", 1, 0},
		"empty message":     {"\x81\x80" + key, 1, 0},
		"126 bytes":         {"\x81\xfe\x00\x7e" + key + large[:126], 1, 0},
		"70,000 bytes":      {"\x81\xff\x00\x00\x00\x00\x00\x01\x11\x70" + key + large, 1, 0},
		"ping, pong, close": {"\x89\x81" + key + "x\x8a\x80" + key + "\x88\x80" + key, 3, 3},
		"fragments":         {"\x01\x81" + key + "a\x00\x81" + key + "b\x80\x81" + key + "c", 3, 0},
		"empty fragments":   {"\x01\x80" + key + "\x00\x80" + key + "\x80\x80" + key, 3, 3},
		"unmasked":          {"\x81\x02hi\x89\x00", 2, 1},
	} {
		f, all, empty := counted()
		if !f.allow([]byte(c.data)) || all() != c.all || *empty != c.empty || f.rest != 0 || f.received != 0 {
			t.Errorf("%s: counted %d frames, %d of them empty or control frames; want %d and %d", name, all(), *empty, c.all, c.empty)
		}
	}
}

func TestFrameBudgetHasLimits(t *testing.T) {
	limits := channel.ConnectionLimits{FramesPerSecond: 2, FrameBytes: 100, AudioBytesPerSecond: 50}
	frame := "\x81\x81maskx" // 7 bytes
	for name, c := range map[string]struct {
		data  string
		empty bool // control frames and empty fragments are allowed
		want  bool
	}{
		"20 frames":            {strings.Repeat(frame, 20), false, true},
		"21 frames":            {strings.Repeat(frame, 21), false, false},
		"250 bytes":            {"\x81\xfe\x01\x00mask" + strings.Repeat("x", 242), false, true},
		"251 bytes":            {"\x81\xfe\x01\x00mask" + strings.Repeat("x", 243), false, false},
		"ping":                 {"\x89\x80mask", true, true},
		"ping over the limit":  {"\x89\x80mask", false, false},
		"part of a header":     {"\x89", false, true},
		"frame of any length":  {"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask" + strings.Repeat(frame, 30), false, true},
		"nothing was received": {"", false, true},
	} {
		f := newFrameBudget(&limits, func() bool { return c.empty })
		testkit.Equal(t, fmt.Sprintf("%s: allowed", name), f.allow([]byte(c.data)), c.want)
	}
}

// The frames do not depend on how the bytes are split into reads.
func FuzzFrameBudget(f *testing.F) {
	f.Add([]byte("\x81\x85maskhello\x89\x80mask\x01\x80mask\x80\x80mask"), uint8(3))
	f.Add([]byte("\x81\xfe\x00\x7emask"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		whole, allWhole, emptyWhole := counted()
		split, allSplit, emptySplit := counted()
		if !whole.allow(data) {
			return // longer than a second's budget
		}
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			split.allow(rest[:n])
			rest = rest[n:]
		}
		if allWhole() != allSplit() || *emptyWhole != *emptySplit || whole.rest != split.rest || whole.received != split.received ||
			!bytes.Equal(whole.header[:whole.received], split.header[:split.received]) {
			t.Errorf("in one read %d frames, %d of them empty; split %d and %d", allWhole(), *emptyWhole, allSplit(), *emptySplit)
		}
	})
}

// The client gets the close frame although it does not stop sending.
func TestFloodIsClosedWithRateLimited(t *testing.T) {
	s, dial := serveSockets(t, time.Hour)
	defer s.Close()
	ws := dialReady(t, dial)
	go func() {
		for ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Minute)) == nil {
		}
	}()
	if err := readToEnd(ws); !websocket.IsCloseError(err, int(channel.CloseRateLimited)) {
		t.Errorf("closed with %v, want close code %d", err, channel.CloseRateLimited)
	}
}
