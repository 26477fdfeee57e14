package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/testkit"
)

// memory is the Store and Sessions of one channel. It returns configured
// outcomes. TestMemoryMatchesStore compares its history with the real store.
type memory struct {
	mu         sync.Mutex
	history    []Message
	page       int // messages that are read at a time; 0: all
	reads      int // calls of Since
	outcome    Outcome
	noEntryID  bool // Append does not return the ID of its newest entry
	err        error
	complete   bool
	subscriber Subscriber
	appended   []Frame
	calls      int
	audio      int
	offered    int
	offering   bool // an earlier connection is responsible for the offer
	claimed    bool
	claim      *Claim
	mustOffer  bool // by the next Renew
	expired    bool
	actions    []string
	ended      []string
	leases     []time.Duration
	request    AttachRequest // the last one
	number     string        // of the connection; empty: 1
	order      string        // of the calls of Attach and Redeem
	touched    int
	queries    [][]string    // of Claims
	renewTime  time.Duration // that Renew takes
	owner      Owner         // of the last Append or Renew
	redeemErr  error
	attachErr  error
	detachErr  error
	reading    func(ctx context.Context) error
	released   int // unsubscribed and detached
}

func (m *memory) Attach(_ context.Context, a AttachRequest) (AttachResult, error) {
	m.leases, m.request, m.order = append(m.leases, a.Lease), a, m.order+" attach"
	if m.attachErr != nil {
		return AttachResult{}, m.attachErr
	}
	attached := AttachResult{Number: cmp.Or(m.number, "1"), Head: at(len(m.history)), LastEntry: "0-7", Offer: !m.offering && !m.claimed, TextChat: true}
	switch {
	case a.Resume == nil && attached.Number == "1":
		attached.Missed = m.after(at(0))
	case a.Resume != nil && (a.Resume.Epoch == "e" || a.Resume.Epoch == anyEpoch):
		attached.Recovered, attached.Missed = true, m.after(*a.Resume)
	}
	return attached, nil
}

func (m *memory) CheckAttach(context.Context, AttachRequest) error { return nil }

func (m *memory) Append(_ context.Context, owner Owner, frames []Frame) ([]Outcome, string, error) {
	m.appended, m.owner = append(m.appended, frames...), owner
	m.calls++
	outcomes := slices.Repeat([]Outcome{m.outcome}, len(frames))
	if m.noEntryID {
		return outcomes, "", m.err
	}
	return outcomes, fmt.Sprintf("%d-1", len(m.appended)), m.err
}

func (m *memory) Renew(_ context.Context, owner Owner, lease time.Duration, reoffer bool) (RenewResult, error) {
	time.Sleep(m.renewTime)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases, m.owner = append(m.leases, lease), owner
	return RenewResult{Outcome: m.outcome, Offer: (reoffer || m.mustOffer) && !m.claimed, Expired: m.expired, Newest: at(len(m.history)).ID}, m.err
}

func (m *memory) Claims(_ context.Context, ids []string) ([]*Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queries = append(m.queries, ids)
	return slices.Repeat([]*Claim{m.claim}, len(ids)), m.err
}

func (m *memory) Offer(_ context.Context, o wire.Offer) error {
	if o.ExpiresAt < time.Now().UnixMilli() {
		return errors.New("offer without the end of its session")
	}
	if m.err != nil {
		return m.err
	}
	m.offered++
	return nil
}
func (m *memory) Redeem(context.Context, string) error {
	m.order += " redeem"
	return m.redeemErr
}
func (m *memory) Detach(_ context.Context, owner Owner, _ []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.released++
	m.owner = owner
	return m.detachErr
}

// failDetach makes Detach fail, or not. It returns how often it was called before.
func (m *memory) failDetach(err error) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detachErr = err
	return m.released
}

func (m *memory) releases() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.released
}
func (m *memory) SendAudio(context.Context, string, []byte) error { m.audio++; return nil }
func (m *memory) AddAction(_, id string, _ time.Time, _ []byte)   { m.actions = append(m.actions, id) }
func (m *memory) Touch(string)                                    { m.touched++ }
func (m *memory) End(_ context.Context, id string) error          { m.ended = append(m.ended, id); return nil }
func (m *memory) Subscribe(_ context.Context, _ string, s Subscriber) (func(), error) {
	m.subscriber = s
	return func() { m.released++ }, nil
}
func (m *memory) Since(ctx context.Context, _ string, c Cursor) ([]Message, bool, error) {
	if m.reading != nil {
		if err := m.reading(ctx); err != nil {
			return nil, false, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.after(c), m.complete, m.err
}

func (m *memory) after(c Cursor) (missed []Message) {
	for _, message := range m.history {
		if message.number() > (Message{Cursor: c}).number() && (m.page == 0 || len(missed) < m.page) {
			missed = append(missed, message)
		}
	}
	return missed
}

func (m Message) number() (n int) {
	_, _ = fmt.Sscanf(m.Cursor.ID, "%d-", &n) // 0 before the first message
	return n
}

// send adds message n to the history. It returns the arguments of
// Subscriber.Messages.
func (m *memory) send(n int) (Cursor, []Message) {
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

// fakeSocket records frames.
type fakeSocket struct {
	frames []string
	full   bool
	code   CloseCode
	audio  int
	slow   bool   // does not write until the test calls then
	then   func() // continues after writes
}

func (w *fakeSocket) Send(frames ...[]byte) bool {
	if w.full && len(frames) > 0 {
		return false
	}
	for _, frame := range frames {
		w.frames = append(w.frames, string(frame))
	}
	return true
}

func (w *fakeSocket) AfterWrites(f func()) {
	if w.slow {
		w.then = f
	} else {
		f()
	}
}
func (w *fakeSocket) SendAudio([]byte) { w.audio++ }
func (w *fakeSocket) Close(code CloseCode) {
	if w.code == 0 {
		w.code = code
	}
}

// numbers returns the numbers of the delivered messages, in order.
func (w *fakeSocket) numbers() (n string) {
	for _, f := range w.frames {
		if _, rest, ok := strings.Cut(f, `"n":`); ok {
			n += rest[:strings.IndexByte(rest, '}')] + " "
		}
	}
	return strings.TrimSpace(n)
}

func openConnection(t *testing.T, m *memory, resume string) (*Connection, *fakeSocket) {
	t.Helper()
	limits := ConnectionLimits{PingIntervalMs: 1000, FrameBytes: 65536, QueuedBytes: 1 << 20, FramesPerSecond: 1000, AudioBytesPerSecond: 1000}
	s := NewService(m, m, limits, "", slog.New(slog.DiscardHandler), nil)
	t.Cleanup(s.Close)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}, ExpiresAt: time.Now().Add(time.Hour)}, "", resume)
	testkit.Must(t, err)
	return c, &fakeSocket{}
}

// handle processes frames as one batch.
func handle(t *testing.T, c *Connection, frames ...[]byte) {
	t.Helper()
	for _, frame := range frames {
		c.Handle(t.Context(), frame)
	}
	c.Flush(t.Context())
}

// NewMemory returns the store that the tests of this package use, and a function
// that appends a message to its history.
func NewMemory() (Store, func(*testing.T)) {
	m := &memory{complete: true}
	return m, func(*testing.T) { m.send(len(m.history) + 1) }
}
