package demo

import (
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	maxSessions      = 64
	maxSessionEvents = 500
)

// Hub distributes the demo's events to the playground's feed and keeps recent
// ones for late subscribers. Its memory is bounded. A nil Hub drops all events.
type Hub struct {
	mu       sync.Mutex
	sessions map[string]*sessionEvents
	order    []string // session IDs, oldest first
}

type sessionEvents struct {
	events      []Event
	subscribers []*func(Event)
}

// NewHub returns an empty hub.
func NewHub() *Hub { return &Hub{sessions: map[string]*sessionEvents{}} }

// Publish records an event with the current time and delivers it to the session's subscribers.
func (h *Hub) Publish(sessionID string, lane, to Lane, kind EventKind, title string, data any) {
	if h == nil {
		return
	}
	raw, _ := json.Marshal(data, json.Deterministic(true)) // data that cannot be encoded is omitted
	e := Event{At: time.Now().UnixMilli(), Lane: lane, To: to, Kind: kind, Title: title, SessionID: sessionID, Data: raw}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(sessionID)
	s.events = append(s.events, e)
	if excess := len(s.events) - maxSessionEvents; excess > 0 {
		s.events = slices.Delete(s.events, 0, excess)
	}
	for _, deliver := range s.subscribers {
		(*deliver)(e)
	}
}

// Subscribe returns the recorded events of a session and calls deliver for each
// later one until cancel is called. deliver must not block or call the hub.
func (h *Hub) Subscribe(sessionID string, deliver func(Event)) (past []Event, cancel func()) {
	if h == nil {
		return nil, func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(sessionID)
	s.subscribers = append(s.subscribers, &deliver)
	return slices.Clone(s.events), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		s.subscribers = slices.DeleteFunc(s.subscribers, func(other *func(Event)) bool { return other == &deliver })
	}
}

// session returns the session's events. When it adds a session beyond
// maxSessions, it drops the oldest one without subscribers. The caller holds mu.
func (h *Hub) session(id string) *sessionEvents {
	s := h.sessions[id]
	if s == nil {
		s = &sessionEvents{}
		h.sessions[id] = s
		h.order = append(h.order, id)
		if len(h.order) > maxSessions {
			oldest := max(0, slices.IndexFunc(h.order[:maxSessions], func(id string) bool { return len(h.sessions[id].subscribers) == 0 }))
			delete(h.sessions, h.order[oldest])
			h.order = slices.Delete(h.order, oldest, oldest+1)
		}
	}
	return s
}
