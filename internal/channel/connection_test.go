package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// memory is a store and hub of one channel, and the records of its session.
type memory struct {
	mu       sync.Mutex
	history  []Message
	outcome  Outcome
	err      error
	whole    bool
	live     Subscriber
	appended []Frame
	calls    int
	offered  int
	told     bool // an earlier connection was told to offer it
	claimed  bool
	kept     []string
	ended    []string
	leases   []time.Duration
	over     error // the session has ended
	reading  func(ctx context.Context) error
	left     int // listeners that stopped, and connections that were given up
}

func (m *memory) Attach(_ context.Context, a AttachRequest) (AttachResult, error) {
	m.leases = append(m.leases, a.Lease)
	attached := AttachResult{Head: at(len(m.history)), Offer: !m.told && !m.claimed, TextChat: true}
	if a.Resume != nil && a.Resume.Epoch == "e" {
		attached.Recovered, attached.Missed = true, m.after(*a.Resume)
	}
	return attached, nil
}

func (m *memory) CheckAttach(context.Context, AttachRequest) error { return nil }

func (m *memory) Append(_ context.Context, _, _ string, frames []Frame) ([]Outcome, error) {
	m.appended = append(m.appended, frames...)
	m.calls++
	return slices.Repeat([]Outcome{m.outcome}, len(frames)), m.err
}

func (m *memory) Renew(_ context.Context, _, _ string, lease time.Duration, again bool) (Outcome, bool, error) {
	m.leases = append(m.leases, lease)
	return m.outcome, again && !m.claimed, m.err
}

func (m *memory) Offer(context.Context, wire.Offer) error {
	if m.err != nil {
		return m.err
	}
	m.offered++
	return nil
}
func (m *memory) Redeem(context.Context, string) error {
	if len(m.leases) == 0 {
		return errors.New("redeemed while there is no channel: whoever ends the session now has nothing to end")
	}
	return m.over
}
func (m *memory) Detach(context.Context, string, string, []byte) error { m.left++; return nil }
func (m *memory) SendAudio(context.Context, string, []byte) error      { return nil }
func (m *memory) AddAction(_, id string, _ time.Time, _ []byte)        { m.kept = append(m.kept, id) }
func (m *memory) Touch(string)                                         {}
func (m *memory) End(_ context.Context, id string) error               { m.ended = append(m.ended, id); return nil }
func (m *memory) Subscribe(_ context.Context, _ string, l Subscriber) (func(), error) {
	m.live = l
	return func() { m.left++ }, nil
}
func (m *memory) Since(ctx context.Context, _ string, c Cursor) ([]Message, bool, error) {
	if m.reading != nil {
		if err := m.reading(ctx); err != nil {
			return nil, false, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.after(c), m.whole, m.err
}

func (m *memory) after(c Cursor) (missed []Message) {
	for _, message := range m.history {
		if message.Cursor.Compare(c) > 0 {
			missed = append(missed, message)
		}
	}
	return missed
}

// say adds message n to the history and returns it with the place before it.
func (m *memory) say(n int) (Cursor, []Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	message := Message{at(n), fmt.Appendf(nil, `{"type":"chat","chat":{"n":%d}}`, n)}
	m.history = append(m.history, message)
	return at(n - 1), []Message{message}
}

func at(n int) Cursor {
	if n == 0 {
		return Cursor{Epoch: "e"}
	}
	return Cursor{"e", fmt.Sprintf("%d-1", n)}
}

// wirePair is a socket that keeps what it was given.
type wirePair struct {
	frames []string
	full   bool
	code   CloseCode
}

func (w *wirePair) Send(frames ...[]byte) bool {
	if w.full {
		return false
	}
	for _, frame := range frames {
		w.frames = append(w.frames, string(frame))
	}
	return true
}
func (w *wirePair) Replay(frames [][]byte) { w.Send(frames...) }
func (w *wirePair) SendAudio([]byte)       {}
func (w *wirePair) Close(code CloseCode) {
	if w.code == 0 {
		w.code = code
	}
}

// numbers are the messages that reached the browser, in order.
func (w *wirePair) numbers() (n string) {
	for _, f := range w.frames {
		if _, rest, ok := strings.Cut(f, `"n":`); ok {
			n += rest[:strings.IndexByte(rest, '}')] + " "
		}
	}
	return strings.TrimSpace(n)
}

func openConnection(t *testing.T, m *memory, resume string) (*Connection, *wirePair) {
	t.Helper()
	limits := Limits{PingIntervalMs: 1000, FrameBytes: 65536, QueuedBytes: 1 << 20, FramesPerSecond: 1000}
	s := NewService(m, m, m, limits, slog.New(slog.DiscardHandler), nil)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}, ExpiresAt: time.Now().Add(time.Hour)}, "", resume)
	if err != nil {
		t.Fatal(err)
	}
	return c, &wirePair{}
}

// handle hands over frames that came together.
func handle(t *testing.T, c *Connection, frames ...[]byte) {
	t.Helper()
	for _, frame := range frames {
		c.Handle(t.Context(), frame)
	}
	c.Flush(t.Context())
}

func TestLiveMessagesArriveOnceAndInOrderWhateverIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{whole: true}
		c, w := openConnection(t, m, "")
		m.live.Messages(m.say(1)) // before the socket is there
		c.Start(w)
		synctest.Wait()
		m.live.Messages(m.say(2))
		m.say(3)                  // never heard of
		m.live.Messages(m.say(4)) // shows the hole
		synctest.Wait()
		m.live.Messages(at(1), m.history[1:2]) // heard again
		m.say(5)
		m.say(6)
		m.live.Messages(at(3), m.history[3:]) // some of it heard again
		m.say(7)
		m.live.Gap() // the subscription was lost and is back
		synctest.Wait()
		if got := w.numbers(); got != "1 2 3 4 5 6 7" {
			t.Errorf("the browser got %s", got)
		}
		if !strings.Contains(w.frames[0], `"event":"ready"`) || !strings.Contains(w.frames[1], `"streamId":"`+at(1).String()) {
			t.Errorf("frames are %q", w.frames[:2])
		}
		if m.offered != 1 {
			t.Errorf("offered %d times", m.offered)
		}
	})
}

func TestSessionIsOfferedUntilItStandsBeforeTheRuntimes(t *testing.T) {
	for name, c := range map[string]struct {
		store *memory
		want  string // offers after the opening and after each beat, of which the second finds the store
	}{
		"at once":                           {&memory{}, "1 1 1 1"},
		"when the store is back":            {&memory{err: errors.New("away")}, "0 0 1 1"},
		"by the next of its connections":    {&memory{told: true}, "0 1 1 1"},
		"by the next, once the store is":    {&memory{told: true, err: errors.New("away")}, "0 0 1 1"},
		"not while it has a runtime at all": {&memory{claimed: true}, "0 0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.store
			m.outcome = Owned
			connection, w := openConnection(t, m, "")
			connection.Start(w)
			got := fmt.Sprint(m.offered)
			for range 3 {
				connection.Heartbeat(t.Context())
				m.err = nil
				got += fmt.Sprintf(" %d", m.offered)
			}
			if got != c.want {
				t.Errorf("offered %s times, want %s", got, c.want)
			}
		})
	}
}

// It may have been revoked while it had no channel that could be ended.
func TestSessionThatHasEndedMeanwhileIsNotOpened(t *testing.T) {
	m := &memory{over: fault.New(fault.SessionEnded, "It has ended.")}
	s := NewService(m, m, m, Limits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), nil)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}}, "", "")
	if c != nil || !fault.Is(err, fault.SessionEnded) || m.offered > 0 || m.left != 2 {
		t.Errorf("opened %v (%v), offered %d times, let go of %d", c, err, m.offered, m.left)
	}
}

// It is sent more while it reads what it has missed, for longer than one reading
// may take.
func TestSocketCatchesUpWithARuntimeThatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{whole: true}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.say(1)
		n := 1
		m.reading = func(ctx context.Context) error {
			time.Sleep(time.Second)
			if n < 10 {
				n++
				c.Messages(m.say(n))
			}
			return ctx.Err()
		}
		c.Gap()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := socket.numbers(); got != "1 2 3 4 5 6 7 8 9 10" || socket.code != 0 {
			t.Errorf("got %s, closed with %d", got, socket.code)
		}
	})
}

func TestHoleThatCannotBeFilledClosesTheSocket(t *testing.T) {
	for want, m := range map[CloseCode]*memory{
		CloseHistoryLost:      {whole: false},
		CloseStoreUnavailable: {whole: true, err: fault.Unavailable("The store", nil)},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, w := openConnection(t, m, "")
			c.Start(w)
			m.say(1)
			m.live.Messages(m.say(2))
			synctest.Wait()
			if w.code != want || w.numbers() != "" {
				t.Errorf("closed with %d after %q, want %d and nothing", w.code, w.numbers(), want)
			}
		})
	}
}

func TestResumeReplaysThenSaysHowMany(t *testing.T) {
	m := &memory{whole: true}
	for n := range 3 {
		m.say(n + 1)
	}
	c, w := openConnection(t, m, at(1).String())
	c.Start(w)
	if got := w.numbers(); got != "2 3" {
		t.Errorf("replayed %s", got)
	}
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"recovered":true,"count":2`) {
		t.Errorf("last frame is %s", last)
	}
	foreign, w2 := openConnection(t, m, Cursor{"other", "1-1"}.String())
	foreign.Start(w2)
	if last := w2.frames[len(w2.frames)-1]; !strings.Contains(last, `"recovered":false,"count":0`) || w2.numbers() != "" {
		t.Errorf("a foreign cursor got %q", w2.frames)
	}
}

func TestOutcomesAreAnsweredAsPromised(t *testing.T) {
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
		m := &memory{outcome: c.outcome, err: c.err, whole: true}
		conn, w := openConnection(t, m, "")
		conn.Start(w)
		handle(t, conn, object(nil))
		last := w.frames[len(w.frames)-1]
		if !strings.Contains(last, c.frame) || w.code != c.code || (c.frame != "" && !strings.Contains(last, messageID)) {
			t.Errorf("%s %v: got %s and %d, want %s and %d", c.outcome, c.err, last, w.code, c.frame, c.code)
		}
	}
}

func TestFramesThatComeTogetherAreAppendedAndAnsweredInOrder(t *testing.T) {
	m := &memory{outcome: Appended, whole: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	var together [][]byte
	for n := range 3 {
		together = append(together, object(set("messageId", fmt.Sprintf("00000000-0000-0000-0000-%012d", n))))
	}
	handle(t, c, append(together, []byte(`{}`))...)
	if len(m.appended) != 3 || m.calls != 1 {
		t.Errorf("appended %d in %d calls", len(m.appended), m.calls)
	}
	story := strings.Join(w.frames[1:], "\n")
	for n := range 3 {
		if want := fmt.Sprintf(`"status":{"event":"ack","messageId":"00000000-0000-0000-0000-%012d"}`, n); !strings.Contains(w.frames[len(w.frames)-4+n], want) {
			t.Errorf("%s is not in its place in %s", want, story)
		}
	}
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"type":"error"`) {
		t.Errorf("the bad frame, which came last, is not the last to be answered in %s", story)
	}
	c.Flush(t.Context())
	if m.calls != 1 {
		t.Error("nothing was appended again")
	}
}

// What is written by hand is what the library would have written.
func TestMessagesAreWrittenAsTheLibraryWrites(t *testing.T) {
	c, _ := openConnection(t, &memory{whole: true}, "")
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

func TestTenthBadFrameInARowCloses(t *testing.T) {
	m := &memory{outcome: Appended, whole: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	for range 9 {
		handle(t, c, []byte(`{}`))
	}
	handle(t, c, object(nil)) // a good one starts the count anew
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

func TestOnlyNewBrowserActionsAreKept(t *testing.T) {
	action := object(func(m map[string]any) { m["type"] = "browser_action"; m["browserAction"] = map[string]any{} })
	for outcome, want := range map[Outcome]int{Appended: 1, Duplicate: 0, Backpressure: 0} {
		m := &memory{outcome: outcome, whole: true}
		c, w := openConnection(t, m, "")
		c.Start(w)
		handle(t, c, action)
		handle(t, c, object(nil))
		if len(m.kept) != want {
			t.Errorf("%s: kept %v", outcome, m.kept)
		}
	}
}

func TestSocketThatCannotKeepUpIsClosed(t *testing.T) {
	m := &memory{outcome: Appended, whole: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	w.full = true
	m.live.Messages(m.say(1))
	if w.code != CloseSlowReader {
		t.Errorf("closed with %d", w.code)
	}
}

func TestHeartbeatEndsWhatIsOver(t *testing.T) {
	for outcome, want := range map[Outcome]CloseCode{Owned: 0, NotOwner: CloseReplaced, Ended: CloseEnded, Lost: CloseHistoryLost} {
		m := &memory{outcome: outcome, whole: true}
		c, w := openConnection(t, m, "")
		c.Start(w)
		c.Heartbeat(t.Context())
		if w.code != want {
			t.Errorf("%s: closed with %d, want %d", outcome, w.code, want)
		}
		if two := 2 * time.Second; !slices.Equal(m.leases, []time.Duration{two, two}) {
			t.Errorf("with a ping a second it has the session for %v", m.leases)
		}
	}
	m := &memory{outcome: Owned, whole: true}
	c, w := openConnection(t, m, "")
	c.session.ExpiresAt = time.Now()
	c.Start(w)
	if c.Heartbeat(t.Context()); w.code != CloseExpired {
		t.Errorf("over its time: closed with %d", w.code)
	}
}

// Notices come by another way than answers of the store: one that is heard before
// the socket is there, or that is older than the connection's own turn, says
// nothing for sure.
func TestSessionOverItsTimeIsSaidToBeThatWhoeverNoticesFirst(t *testing.T) {
	for when, want := range map[time.Duration]CloseCode{time.Hour - time.Millisecond: CloseEnded, time.Hour: CloseExpired} {
		for name, notice := range map[string]func(*Connection){
			"a sweeper":       func(c *Connection) { c.Closed("expired") },
			"the heartbeat":   func(c *Connection) { c.Heartbeat(t.Context()) },
			"the next frames": func(c *Connection) { handle(t, c, object(nil)) },
		} {
			synctest.Test(t, func(t *testing.T) {
				c, socket := openConnection(t, &memory{outcome: Ended}, "")
				c.Start(socket)
				time.Sleep(when)
				notice(c)
				synctest.Wait()
				if socket.code != want {
					t.Errorf("%s, after %s: closed with %d", name, when, socket.code)
				}
			})
		}
	}
}

func TestConnectionEndsWhenItIsReplacedWheneverItHearsOfIt(t *testing.T) {
	for outcome, want := range map[Outcome]CloseCode{Owned: 0, NotOwner: CloseReplaced, Ended: CloseEnded} {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				m := &memory{outcome: outcome, whole: true}
				c, w := openConnection(t, m, "")
				if !early {
					c.Start(w)
				}
				m.live.Replaced("another")
				if outcome == Ended && early {
					m.live.Closed("over")
				}
				synctest.Wait()
				if early {
					c.Start(w)
				}
				synctest.Wait()
				if w.code != want {
					t.Errorf("%s, heard early: %t: closed with %d, want %d", outcome, early, w.code, want)
				}
			})
		}
	}
}
