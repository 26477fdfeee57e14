package httpapi

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

// counted returns a budget without limits, and counters of its frames.
func counted() (f *frameBudget, all func() int, empty *int) {
	empty = new(int)
	f = newFrameBudget(&channel.Limits{FramesPerSecond: 1 << 20, FrameBytes: 1 << 20}, func() bool { *empty++; return true })
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
	limits := channel.Limits{FramesPerSecond: 2, FrameBytes: 100, AudioBytesPerSecond: 50}
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
		if got := f.allow([]byte(c.data)); got != c.want {
			t.Errorf("%s: allowed %v, want %v", name, got, c.want)
		}
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
	defer s.sockets.close()
	ws := dialReady(t, dial)
	go func() {
		for ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Minute)) == nil {
		}
	}()
	if err := readToEnd(ws); !websocket.IsCloseError(err, int(channel.CloseRateLimited)) {
		t.Errorf("closed with %v, want close code %d", err, channel.CloseRateLimited)
	}
}
