package demo

import (
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

const (
	maxSessions      = 64
	maxSessionEvents = 1000
	maxSessionBytes  = 512 << 10
)

// Hub distributes the demo's events to the playground's feed and keeps recent
// ones for late subscribers. Its memory is bounded.
type Hub struct {
	source string // of the events

	mu       sync.Mutex
	seq      int64 // of the newest event
	sessions map[string]*sessionEvents
	order    []string // session IDs, oldest first
}

type sessionEvents struct {
	events      []Event
	bytes       int
	sent        string // ID of the newest message, which the next event follows
	subscribers []chan<- Event
}

// NewHub returns an empty hub. Each hub is a separate source of events, so that the
// events of a restarted demo differ from earlier ones.
func NewHub() *Hub {
	return &Hub{source: "demo-" + uuid.NewString()[:8], sessions: map[string]*sessionEvents{}}
}

// Record records an event with the current time and its data, which may be nil, and delivers
// it to the session's subscribers. Call it after the cause of the event has happened and before
// the event has effects, so that the order of the calls is the order of events.
func (h *Hub) Record(e Event, data any) {
	if data != nil {
		e.Data, _ = json.Marshal(data, json.Deterministic(true)) // data that cannot be encoded is omitted
	}
	e.shorten()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(e.SessionID)
	if s.sent != "" {
		e.After, s.sent = append(e.After, s.sent), ""
	}
	h.seq++
	e.At, e.Source, e.Seq = time.Now().UnixMilli(), h.source, h.seq
	s.events, s.bytes = append(s.events, e), s.bytes+e.size()
	for len(s.events) > maxSessionEvents || s.bytes > maxSessionBytes {
		s.bytes -= s.events[0].size()
		s.events = slices.Delete(s.events, 0, 1)
	}
	for _, subscriber := range s.subscribers {
		select {
		case subscriber <- e:
		default:
		}
	}
}

// Sent records that the demo has sent a message to the browser. The session's next
// event follows it.
func (h *Hub) Sent(sessionID, messageID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session(sessionID).sent = messageRef(messageID)
}

// Subscribe returns the recorded events of a session and sends each later one to
// events until cancel is called. It drops an event if the channel is full.
func (h *Hub) Subscribe(sessionID string, events chan<- Event) (past []Event, cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(sessionID)
	s.subscribers = append(s.subscribers, events)
	return slices.Clone(s.events), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		s.subscribers = slices.DeleteFunc(s.subscribers, func(other chan<- Event) bool { return other == events })
	}
}

// session returns the session's events. When it adds a session beyond
// maxSessions, it drops the oldest one without subscribers, or else the oldest. The caller holds mu.
func (h *Hub) session(id string) *sessionEvents {
	if s := h.sessions[id]; s != nil {
		return s
	}
	h.sessions[id] = &sessionEvents{}
	h.order = append(h.order, id)
	if len(h.order) > maxSessions {
		oldest := max(0, slices.IndexFunc(h.order[:maxSessions], func(id string) bool { return len(h.sessions[id].subscribers) == 0 }))
		delete(h.sessions, h.order[oldest])
		h.order = slices.Delete(h.order, oldest, oldest+1)
	}
	return h.sessions[id]
}
