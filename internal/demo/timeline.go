package demo

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// Lane is a column of the playground's timeline: one participant of a session.
type Lane string

// The lanes of the timeline.
const (
	LaneBrowser Lane = "browser"
	LaneService Lane = "service"
	LaneRuntime Lane = "runtime"
	LaneBot     Lane = "bot"
)

// EventKind classifies an Event.
type EventKind string

// The kinds of events.
const (
	EventFrame     EventKind = "frame"     // a frame between browser and runtime
	EventEntry     EventKind = "entry"     // an entry of the runtime stream
	EventCallback  EventKind = "callback"  // a provider's callback or its receipt
	EventCommand   EventKind = "command"   // an allowed command
	EventDenied    EventKind = "denied"    // a denied command
	EventTimer     EventKind = "timer"     // a timer that fired
	EventSpeech    EventKind = "speech"    // speech synthesized or played
	EventHTTP      EventKind = "http"      // a request to a provider
	EventSession   EventKind = "session"   // connected, disconnected, ended
	EventHeartbeat EventKind = "heartbeat" // keeps an idle feed open
)

// Event is one event of a session's timeline. Data never contains credentials.
type Event struct {
	At        int64          `json:"at"` // Unix milliseconds
	Lane      Lane           `json:"lane"`
	To        Lane           `json:"to,omitzero"` // the receiving lane, if any
	Kind      EventKind      `json:"kind"`
	Title     string         `json:"title"`
	SessionID string         `json:"sessionId"`
	Data      jsontext.Value `json:"data,omitzero"`
}

// entryEvents maps kinds of stream entries to the lanes and kind of their events.
var entryEvents = map[wire.EntryKind]Event{
	wire.KindFrame:         {Lane: LaneBrowser, To: LaneRuntime, Kind: EventFrame},
	wire.KindSession:       {Lane: LaneService, To: LaneRuntime, Kind: EventSession},
	wire.KindChannelEnded:  {Lane: LaneService, To: LaneRuntime, Kind: EventSession},
	wire.KindCommand:       {Lane: LaneService, To: LaneRuntime, Kind: EventCommand},
	wire.KindCommandDenied: {Lane: LaneService, To: LaneRuntime, Kind: EventDenied},
	wire.KindTimeout:       {Lane: LaneService, To: LaneRuntime, Kind: EventTimer},
}

// entryEvent converts an entry of the runtime stream.
func entryEvent(e wire.Entry, raw jsontext.Value) Event {
	event, ok := entryEvents[e.Kind]
	if !ok {
		event = Event{Lane: LaneService, To: LaneRuntime, Kind: EventEntry}
	}
	if e.Kind == wire.KindChannelData {
		raw = withoutSensitiveData(e)
	}
	event.At, event.SessionID, event.Title, event.Data = e.At, e.ChannelID, Title(e), raw
	event.shorten()
	return event
}

// messageEvent converts a message from the runtime to the browser.
func messageEvent(e wire.Entry, raw jsontext.Value) Event {
	event := entryEvent(e, raw)
	event.Lane, event.To = LaneRuntime, LaneBrowser
	return event
}

// Title summarizes an entry in one line.
func Title(e wire.Entry) string {
	switch {
	case e.Kind == wire.KindFrame && e.Message != nil:
		return string(e.Message.Type) + payloadTitle(e.Message)
	case e.Kind == wire.KindCommand && e.Command.Command != nil:
		return fmt.Sprintf("command %s, %s", e.Command.Common().Type, e.Apply)
	case e.Kind == wire.KindCommandDenied && e.Command.Command != nil:
		return fmt.Sprintf("%s denied: %s", e.Command.Common().Type, e.Reason)
	case e.Kind == wire.KindLLMResult && e.Content != nil:
		return "LLM result: " + *e.Content
	}
	switch e.Kind {
	case wire.KindSession:
		return "browser " + e.Event
	case wire.KindChannelEnded:
		return "ended: " + e.Reason
	case wire.KindBotMessage:
		return "bot message: " + e.Text
	case wire.KindBotEvent:
		return strings.TrimSpace("bot event " + e.Event + " " + string(e.Value))
	case wire.KindBotOperation:
		return strings.TrimSpace("bot operation " + e.Event + " " + strings.Trim(string(e.Result), `"`))
	case wire.KindToolResult:
		return "tool result: " + string(e.Result)
	case wire.KindTimeout:
		return string(e.WorkItemKind) + " timed out"
	case wire.KindProviderError:
		return "provider error: " + string(e.Error)
	default:
		return string(e.Kind)
	}
}

// payloadTitle returns the text of a chat or the name of an event or action, after a colon.
func payloadTitle(m *wire.ChannelMessage) string {
	payload, _ := m.Payload()
	var known struct {
		Text, Event, Command, Type, Name any
	}
	if payload != nil {
		_ = json.Unmarshal(*payload, &known, json.MatchCaseInsensitiveNames(true)) // a free-form payload may have no title
	}
	for _, part := range []any{known.Text, known.Event, known.Command, known.Type, known.Name} {
		if s, ok := part.(string); ok {
			return ": " + s
		}
	}
	return ""
}

// withoutSensitiveData encodes an entry without the values that its provider marked as sensitive.
func withoutSensitiveData(e wire.Entry) jsontext.Value {
	for i, d := range e.ChannelData {
		if d.SensitiveData != nil && *d.SensitiveData {
			e.ChannelData[i].Value = jsontext.Value(`"[hidden]"`)
		}
	}
	raw, _ := json.Marshal(e) // it was decoded from JSON
	return raw
}

const (
	maxTitle = 200     // characters
	maxData  = 8 << 10 // bytes

	maxSessions      = 64
	maxSessionEvents = 500
	maxSessionBytes  = 256 << 10
)

// shorten limits the size of an event. An entry can have 1 MiB.
func (e *Event) shorten() {
	characters := 0
	for i := range e.Title {
		if characters++; characters > maxTitle {
			e.Title = e.Title[:i] + "…"
			break
		}
	}
	if len(e.Data) > maxData {
		e.Data = jsontext.Value(fmt.Sprintf(`{"omittedBytes":%d}`, len(e.Data)))
	}
}

// size returns the approximate memory of an event.
func (e *Event) size() int { return 256 + len(e.Title) + len(e.Data) }

// Hub distributes the demo's events to the playground's feed and keeps recent
// ones for late subscribers. Its memory is bounded. A nil Hub drops all events.
type Hub struct {
	mu       sync.Mutex
	sessions map[string]*sessionEvents
	order    []string // session IDs, oldest first
}

type sessionEvents struct {
	events      []Event
	bytes       int
	subscribers []chan<- Event
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
	e.shorten()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(sessionID)
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

// Subscribe returns the recorded events of a session and sends each later one to
// events until cancel is called. It drops an event if the channel is full.
func (h *Hub) Subscribe(sessionID string, events chan<- Event) (past []Event, cancel func()) {
	if h == nil {
		return nil, func() {}
	}
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
// maxSessions, it drops the oldest one without subscribers. The caller holds mu.
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
