package channel

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

func TestFrameOutcomes(t *testing.T) {
	for _, c := range []struct {
		outcome Outcome
		err     error
		frame   string
		code    CloseCode
	}{
		{outcome: Appended, frame: `"event":"ack"`},
		{outcome: Duplicate, frame: `"event":"ack"`},
		{outcome: ChatDisabled, frame: `"code":"TEXT_CHAT_DISABLED"`},
		{outcome: Backpressure, frame: `"code":"BACKPRESSURE"`},
		{outcome: NotOwner, code: CloseReplaced},
		{outcome: Expired, code: CloseStoreUnavailable},
		{outcome: Ended, code: CloseEnded},
		{outcome: Lost, code: CloseHistoryLost},
		{err: fault.Unavailable("The store", nil), frame: `"code":"SERVICE_UNAVAILABLE"`, code: CloseStoreUnavailable},
	} {
		m := &memory{outcome: c.outcome, err: c.err, complete: true}
		conn, w := openConnection(t, m, "")
		conn.Start(w)
		handle(t, conn, object(nil))
		last := w.frames[len(w.frames)-1]
		if !strings.Contains(last, c.frame) || w.code != c.code || (c.frame != "" && !strings.Contains(last, messageID)) {
			t.Errorf("%s %v: got %s and %d, want %s and %d", c.outcome, c.err, last, w.code, c.frame, c.code)
		}
	}
}

func TestBatchIsAppendedAndAcknowledgedInOrder(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	var batch [][]byte
	for n := range 3 {
		batch = append(batch, object(set("messageId", fmt.Sprintf("00000000-0000-0000-0000-%012d", n))))
	}
	handle(t, c, append(batch, []byte(`{}`))...)
	if len(m.appended) != 3 || m.calls != 1 {
		t.Errorf("appended %d in %d calls", len(m.appended), m.calls)
	}
	frames := strings.Join(w.frames[1:], "\n")
	for n := range 3 {
		if want := fmt.Sprintf(`"status":{"event":"ack","messageId":"00000000-0000-0000-0000-%012d"}`, n); !strings.Contains(w.frames[len(w.frames)-4+n], want) {
			t.Errorf("%s is out of order in %s", want, frames)
		}
	}
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"type":"error"`) {
		t.Errorf("the error for the last frame is not last in %s", frames)
	}
	c.Flush(t.Context())
	if m.calls != 1 {
		t.Error("the batch was appended again")
	}
}

func TestFrameEntryMatchesEncoder(t *testing.T) {
	c, _ := openConnection(t, &memory{complete: true}, "")
	now := time.UnixMilli(1700000000123)
	c.service.now = func() time.Time { return now }
	c.handshake = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	for _, kind := range wire.MessageTypes {
		m := wire.ChannelMessage{Type: kind, SessionID: sessionID, MessageID: messageID, Timestamp: 17, Direction: wire.ToRuntime, Trace: c.trace()}
		payload, _ := m.Payload()
		if payload == nil {
			if got, want := string(m.Append(nil)), string(encode(m)); got != want {
				t.Errorf("%s, not %s", got, want)
			}
			continue
		}
		*payload = []byte(`{"text":"a \"quoted\" ü"}`)
		if got, want := string(c.frameEntry(&m, now, c.trace())), string(c.entry(wire.Entry{Kind: wire.KindFrame, Message: &m})); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func TestMalformedFrameGetsPosition(t *testing.T) {
	c, w := openConnection(t, &memory{complete: true}, "")
	c.Start(w)
	handle(t, c, []byte(`{"type":chat}`))
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"code":"MALFORMED_JSON","message":"Invalid JSON: syntax error at byte 8."`) {
		t.Errorf("frame %s, want MALFORMED_JSON with the position of the error", last)
	}
}

func TestTenthInvalidFrameInARowClosesSocket(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	for range 9 {
		handle(t, c, []byte(`{}`))
	}
	handle(t, c, object(nil)) // a valid frame resets the count
	for range 9 {
		handle(t, c, []byte(`{}`))
	}
	if w.code != 0 {
		t.Fatalf("closed with %d", w.code)
	}
	handle(t, c, []byte(`{}`))
	if w.code != CloseInvalidFrames {
		t.Errorf("closed with %d", w.code)
	}
	all := strings.Join(w.frames, "")
	if strings.Count(all, `"fatal":false`) != 18 || strings.Count(all, `"fatal":true`) != 1 || !strings.Contains(w.frames[len(w.frames)-1], `"fatal":true`) {
		t.Errorf("want 18 errors and then a fatal one: %s", all)
	}
}

func TestAcknowledgedBrowserActionsAreRecorded(t *testing.T) {
	action := object(func(m map[string]any) { m["type"] = "browser_action"; m["browserAction"] = map[string]any{} })
	for outcome, want := range map[Outcome]int{Appended: 1, Duplicate: 1, Backpressure: 0} {
		m := &memory{outcome: outcome, complete: true}
		c, w := openConnection(t, m, "")
		c.Start(w)
		handle(t, c, action)
		handle(t, c, object(nil))
		if len(m.actions) != want {
			t.Errorf("%s: recorded %v", outcome, m.actions)
		}
	}
}

func TestAudioAboveRateIsDropped(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "") // limited to 1,000 bytes a second
	c.Start(w)
	now := time.Now()
	c.service.now = func() time.Time { return now }
	frame := object(func(m map[string]any) {
		m["type"], m["audio"] = "audio", map[string]any{"data": ""}
	})
	frame = bytes.Replace(frame, []byte(`"data":""`), fmt.Appendf(nil, `"data":%q`, strings.Repeat("x", 250-len(frame))), 1)
	for _, step := range []struct {
		after      time.Duration
		sent, want int
	}{{0, 6, 4}, {249 * time.Millisecond, 3, 0}, {time.Millisecond, 3, 1}, {time.Hour, 9, 4}} {
		now = now.Add(step.after)
		before := m.audio
		for range step.sent {
			handle(t, c, frame)
		}
		if got := m.audio - before; got != step.want {
			t.Errorf("after %v, %d of %d audio frames were forwarded, want %d", step.after, got, step.sent, step.want)
		}
	}
	var dropped dto.Metric
	if err := c.service.metrics.audioDropped.Write(&dropped); err != nil || dropped.GetCounter().GetValue() != 12 {
		t.Errorf("%v audio frames were counted as dropped, %v; want 12", dropped.GetCounter().GetValue(), err)
	}
	handle(t, c, object(nil)) // other frames have their own limit
	if len(w.frames) != 2 || len(m.appended) != 1 || w.code != 0 {
		t.Errorf("frames %v, appended %d, closed with %d; want ready and an acknowledgement", w.frames, len(m.appended), w.code)
	}
}
