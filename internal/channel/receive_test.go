package channel

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
	for _, kind := range wire.MessageTypes {
		m := wire.ChannelMessage{Type: kind, SessionID: sessionID, MessageID: messageID, Timestamp: 17, Direction: wire.ToARI}
		payload, _ := m.Payload()
		if payload == nil {
			if got, want := string(m.Append(nil)), string(encode(m)); got != want {
				t.Errorf("%s, not %s", got, want)
			}
			continue
		}
		*payload = []byte(`{"text":"a \"quoted\" ü"}`)
		if got, want := string(c.frameEntry(&m, now)), string(c.entry(wire.Entry{Kind: wire.KindFrame, Message: &m})); got != want {
			t.Errorf("%s, not %s", got, want)
		}
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
}

func TestOnlyNewBrowserActionsAreRecorded(t *testing.T) {
	action := object(func(m map[string]any) { m["type"] = "browser_action"; m["browserAction"] = map[string]any{} })
	for outcome, want := range map[Outcome]int{Appended: 1, Duplicate: 0, Backpressure: 0} {
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
