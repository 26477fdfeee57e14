// Package timeline owns what people are shown of a session as it happens: the
// events of the playground's lanes, their titles, and the hub by which parts of
// this process that are not seen on a channel, such as the demo's, tell of theirs.
package timeline

import (
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Lane is where something happens.
type Lane string

// The lanes.
const (
	Browser Lane = "browser"
	Service Lane = "service"
	Runtime Lane = "runtime"
	Bot     Lane = "bot"
)

// Kind is the sort of an event.
type Kind string

// The kinds.
const (
	Frame     Kind = "frame"     // between browser and runtime
	Entry     Kind = "entry"     // on the runtime's stream
	Callback  Kind = "callback"  // of a provider, and the service's answer
	Command   Kind = "command"   // that is to be carried out
	Denied    Kind = "denied"    // and one that is not
	Timer     Kind = "timer"     // started, or over
	Speech    Kind = "speech"    // made, played
	HTTP      Kind = "http"      // a request to a provider
	Session   Kind = "session"   // connected, disconnected, ended
	Heartbeat Kind = "heartbeat" // nothing happened, and the feed is alive
)

// Event is one thing that happened. Data holds no credentials.
type Event struct {
	At        int64          `json:"at"` // Unix milliseconds
	Lane      Lane           `json:"lane"`
	To        Lane           `json:"to,omitzero"` // where it goes, if anywhere
	Kind      Kind           `json:"kind"`
	Title     string         `json:"title"`
	SessionID string         `json:"sessionId"`
	Data      jsontext.Value `json:"data,omitzero"`
}

const (
	keptSessions = 64
	keptEvents   = 500 // of one session
	waiting      = 256 // for a reader; a slower one misses some
)

// Hub passes events on within the process and remembers recent ones for readers
// who come late. All it keeps is bounded.
type Hub struct {
	mu       sync.Mutex
	sessions map[string]*story
	order    []string // of sessions, the oldest first
}

type story struct {
	events  []Event
	readers []chan Event
}

// NewHub returns an empty hub.
func NewHub() *Hub { return &Hub{sessions: map[string]*story{}} }

// Tell adds an event of now. It never blocks. A nil hub hears nothing.
func (h *Hub) Tell(sessionID string, lane, to Lane, kind Kind, title string, data any) {
	if h == nil {
		return
	}
	raw, _ := json.Marshal(data, json.Deterministic(true)) // what cannot be shown is left out
	e := Event{At: time.Now().UnixMilli(), Lane: lane, To: to, Kind: kind, Title: title, SessionID: sessionID, Data: raw}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.story(sessionID)
	s.events = append(s.events, e)
	if over := len(s.events) - keptEvents; over > 0 {
		s.events = slices.Delete(s.events, 0, over)
	}
	for _, r := range s.readers {
		select {
		case r <- e:
		default:
		}
	}
}

// Follow returns what is remembered of a session and a channel of what follows,
// until leave is called. A nil hub has nothing to say.
func (h *Hub) Follow(sessionID string) (past []Event, next <-chan Event, leave func()) {
	if h == nil {
		return nil, nil, func() {}
	}
	reader := make(chan Event, waiting)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.story(sessionID)
	s.readers = append(s.readers, reader)
	return slices.Clone(s.events), reader, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		s.readers = slices.DeleteFunc(s.readers, func(r chan Event) bool { return r == reader })
	}
}

// story finds a session's, and forgets the oldest that nobody follows for a new
// one. The caller holds mu.
func (h *Hub) story(sessionID string) *story {
	s := h.sessions[sessionID]
	if s == nil {
		s = &story{}
		h.sessions[sessionID] = s
		h.order = append(h.order, sessionID)
		if len(h.order) > keptSessions {
			at := max(0, slices.IndexFunc(h.order[:keptSessions], func(id string) bool { return len(h.sessions[id].readers) == 0 }))
			delete(h.sessions, h.order[at])
			h.order = slices.Delete(h.order, at, at+1)
		}
	}
	return s
}
