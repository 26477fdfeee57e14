package simulation

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/runtimeapi"
)

const (
	// blockedSlack is how much later than its predecessors' deadlines a result may
	// be on the stream.
	blockedSlack = 12 * time.Second
)

// disconnectBound is how long after a connection has gone without a word the
// runtime must know: the lease, the time until the claim is renewed, a stall.
func (w *world) disconnectBound() time.Duration { return 2*w.ping + runtimeapi.Lease/3 + 9*time.Second }

// number returns the number of a stream ID.
func number(id string) int {
	digits, _, _ := strings.Cut(id, "-")
	n, _ := strconv.Atoi(digits)
	return n
}

// describe identifies an entry by its content.
func describe(e wire.Entry) string {
	switch {
	case e.Part > 0:
		return describePart(e)
	case e.Parts > 0:
		return describeEnd(e)
	}
	switch e.Kind {
	case wire.KindFrame:
		return "frame " + e.Message.MessageID
	case wire.KindSession:
		return "session " + e.Event
	case wire.KindBotMessage:
		return "result " + e.Text
	case wire.KindLLMResult:
		return "result " + *e.Content
	case wire.KindTimeout:
		return "timeout " + e.WorkItemID
	}
	return string(e.Kind)
}

// streamed is an item of a stream in the store.
type streamed struct {
	id  string
	key string
	at  time.Time // when it was added, by the clock of its node
}

func newStreamed(id, key string) streamed {
	_, ms, _ := strings.Cut(id, "-")
	at, _ := strconv.ParseInt(ms, 10, 64)
	return streamed{id, key, time.UnixMilli(at)}
}

func readStream(engine *miniredis.Miniredis, key, field string, describe func(string) string) (list []streamed) {
	if !engine.Exists(key) {
		return nil
	}
	items, err := engine.Stream(key)
	if err != nil {
		return nil
	}
	for _, item := range items {
		for i := 0; i+1 < len(item.Values); i += 2 {
			if item.Values[i] == field {
				list = append(list, newStreamed(item.ID, describe(item.Values[i+1])))
			}
		}
	}
	return list
}

func entryKey(raw string) string {
	var e wire.Entry
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		return "invalid"
	}
	return describe(e)
}

func messageKey(raw string) string {
	var m wire.ChannelMessage
	_ = json.Unmarshal([]byte(raw), &m)
	return textOf(m)
}

// textOf returns the text of a chat message, which identifies it.
func textOf(m wire.ChannelMessage) string {
	var chat struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Chat, &chat)
	return chat.Text
}

// settled reports whether nothing is under way any more.
func (l *ledger) settled() bool {
	for _, r := range l.channels {
		if !r.settled() {
			return false
		}
	}
	return true
}

func (r *channelRecord) settled() bool {
	in, open := r.runtimeStream(), r.isOpen()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return r.endLost() || !open && !r.online && !r.deleted.IsZero() && r.endDelivered()
	}
	if !r.online || r.active == nil {
		return false
	}
	if n := len(in); n > 0 && r.active.last != in[n-1].id {
		return false
	}
	for _, f := range r.frames {
		if f.acked.IsZero() {
			return false
		}
	}
	for _, i := range r.items {
		if i.isAwaited && !i.isCancelled && i.rejectedAt.IsZero() && !contains(in, "result "+i.id) && !contains(in, "timeout "+i.id) {
			return false
		}
	}
	return true
}

func contains(list []streamed, key string) bool {
	return slices.ContainsFunc(list, func(s streamed) bool { return s.key == key })
}

func count(list []streamed, key string) (n int) {
	for _, s := range list {
		if s.key == key {
			n++
		}
	}
	return n
}

// runtimeStream returns the runtime stream. Entries that were received and then removed
// are part of it.
func (r *channelRecord) runtimeStream() (list []streamed) {
	s := r.ledger.world.store
	s.mu.Lock()
	stored := readStream(s.engine, kv.RuntimeStreamKey(r.id), "entry", entryKey)
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	removed := map[int]streamed{} // after a loss another entry has the number
	for _, id := range r.deliveries {
		if len(stored) > 0 && number(id) < number(stored[0].id) {
			removed[number(id)] = newStreamed(id, r.entries[id])
		}
	}
	list = slices.SortedFunc(maps.Values(removed), func(a, b streamed) int { return number(a.id) - number(b.id) })
	return append(list, stored...)
}

// isOpen reports whether the store has an open channel.
func (r *channelRecord) isOpen() bool {
	s := r.ledger.world.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.HGet(kv.ChannelKeys(r.id)[0], "state") == "open"
}

func (r *channelRecord) history() []streamed {
	s := r.ledger.world.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return readStream(s.engine, kv.HistoryKey(r.id), "message", messageKey)
}

// check compares the ledger with the store after a run.
func (l *ledger) check() {
	for _, r := range l.channels {
		if r.endLost() {
			continue
		}
		in, out := r.runtimeStream(), r.history()
		l.world.store.convertTimes(r.id, in)
		r.checkDeletion()
		r.mu.Lock()
		r.checkFrames(in)
		r.checkDeliveries(in)
		r.checkItems(in)
		r.checkSends(out)
		r.checkDisconnects(in)
		r.mu.Unlock()
	}
}

func (r *channelRecord) checkFrames(in []streamed) {
	last := 0
	for _, s := range in {
		for _, f := range r.frames {
			if s.key == "frame "+f.id {
				if f.number <= last {
					r.violation("frame %d is on the stream after frame %d", f.number, last)
				}
				last = f.number
			}
		}
	}
	for _, f := range r.frames {
		n := count(in, "frame "+f.id)
		lost := r.ledger.lostAt(r.id, "frame", f.id)
		switch {
		case n > 1:
			r.violation("frame %d is on the stream %d times", f.number, n)
		case f.acked.IsZero() && r.finalCode == 0 && !r.ended:
			r.violation("frame %d was not acknowledged after %v without faults", f.number, maxCalm)
		case n == 0 && !f.acked.IsZero() && lost.IsZero():
			r.violation("frame %d was acknowledged but is not on the stream", f.number)
		case n == 0 && !f.acked.IsZero() && !r.isForgotten(f, lost):
			r.reported("frame "+strconv.Itoa(f.number), lost)
		}
		if f.action && !f.acked.IsZero() && !r.ledger.actions[f.id] && !r.crashedAfter(f.acked) {
			r.violation("browser action %d was acknowledged but is not in the database", f.number)
		}
	}
}

// crashedAfter reports whether an instance crashed so soon after an
// acknowledgement that its queue of actions was lost.
func (r *channelRecord) crashedAfter(at time.Time) bool {
	for _, crash := range r.ledger.crashes {
		if !crash.Before(at.Add(-time.Second)) && crash.Sub(at) < time.Second {
			return true
		}
	}
	return false
}

// checkDeliveries checks that the runtimes received the whole stream.
func (r *channelRecord) checkDeliveries(in []streamed) {
	for _, s := range in {
		if key, ok := r.entries[s.id]; !ok {
			r.violation("entry %d (%s) was never received", number(s.id), s.key)
		} else if key != s.key {
			r.violation("entry %d was received as %s, but it is %s", number(s.id), key, s.key)
		}
	}
	if r.ledger.lostSinceLocked(r.id) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(r.entries)) {
		key := r.entries[id]
		if !slices.ContainsFunc(in, func(s streamed) bool { return s.id == id }) {
			r.violation("entry %s (%s) was received but is not on the stream", id, key)
		}
	}
}

func (l *ledger) lostSinceLocked(channelID string) bool { return l.lostSince(channelID, time.Time{}) }

func (r *channelRecord) checkSends(out []streamed) {
	last := 0
	for _, s := range out {
		for _, m := range r.sends {
			if s.key == m.id {
				if m.number <= last && !r.hasLost("claim") { // an older claim was valid again, until the later one noticed
					r.violation("message %d is in the history after message %d", m.number, last)
				}
				last = m.number
			}
		}
	}
	for _, m := range r.sends {
		n, got := count(out, m.id), 0
		for _, received := range r.messages {
			if received == m.id {
				got++
			}
		}
		lost := r.ledger.lostAt(r.id, "send", m.id)
		mayRepeat := !lost.IsZero() && r.ledger.world.replicas == 0 // with replicas, what is lost was not shown before
		if r.isTrimmed() && r.ledger.world.store.hasSent(r.id, m.id, lost) {
			lost = time.Time{} // it was sent again, and then removed
		}
		notified := r.mayMiss(m)
		switch {
		case n > 1 || got > 1 && !mayRepeat:
			r.violation("message %d is in the history %d times and was received %d times", m.number, n, got)
		case n == 0 && !m.acked.IsZero() && lost.IsZero() && !(r.isTrimmed() && (got > 0 || notified || r.ended)):
			r.violation("message %d was sent but is not in the history", m.number)
		case n == 0 && !lost.IsZero() && got > 0 && r.ledger.world.replicas > 0:
			r.violation("the browser got message %d before a replica had it", m.number)
		case n == 0 && !m.acked.IsZero() && !lost.IsZero() && !r.isMessageForgotten(lost):
			r.reported("message "+strconv.Itoa(m.number), lost)
		case n == 1 && got == 0 && m.acked.IsZero() && r.ledger.world.replicas > 0: // held back until the next message is confirmed
		case n == 1 && got == 0 && !notified && r.finalCode != 4502 && !r.ended:
			r.violation("message %d was sent, but the browser did not get it", m.number)
		}
	}
	r.checkMessageOrder()
	r.checkDelays()
}

// isTrimmed reports whether the store may have removed messages on purpose.
func (r *channelRecord) isTrimmed() bool {
	w := r.ledger.world
	return w.small || w.active == longRun || len(r.sends) > int(wire.DefaultChannelLimits().HistoryMessages)
}

// mayMiss reports whether the browser knows that it may have missed a message.
func (r *channelRecord) mayMiss(m *sendRecord) bool {
	if r.ledger.world.replicas > 0 && !r.isTrimmed() {
		return false
	}
	return slices.ContainsFunc(r.browserNotices, func(at time.Time) bool { return at.After(m.started) })
}

func (r *channelRecord) checkMessageOrder() {
	if r.ledger.lostSinceLocked(r.id) {
		return
	}
	last := 0
	for _, m := range r.messages {
		for _, s := range r.sends {
			if s.id == m {
				if s.number < last {
					r.violation("the browser received message %d after message %d", s.number, last)
				}
				last = s.number
			}
		}
	}
}

// checkDisconnects checks that the runtime learned of every long disconnection.
func (r *channelRecord) checkDisconnects(in []streamed) {
	if r.ledger.lostSinceLocked(r.id) {
		return
	}
	bound := r.ledger.world.disconnectBound()
	for _, a := range r.disconnections {
		if a.to.IsZero() || a.to.Sub(a.from) < bound || !r.served(a.from, a.from.Add(bound)) {
			continue
		}
		state := ""
		for _, s := range in {
			if s.at.Before(a.from.Add(bound)) && strings.HasPrefix(s.key, "session ") {
				state = s.key
			}
		}
		if state == "session connected" {
			r.violation("the runtime was not notified within %v that the browser is gone", bound)
		}
	}
}

// served reports whether one runtime had the channel all the time.
func (r *channelRecord) served(from, to time.Time) bool {
	for _, t := range r.claims {
		if !t.from.After(from) && (t.until.IsZero() || t.until.After(to)) {
			return true
		}
	}
	return false
}
