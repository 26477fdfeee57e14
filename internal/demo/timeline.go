package demo

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
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
	EventMark      EventKind = "mark"      // orders and times other events; not shown as a row
	EventWaiting   EventKind = "waiting"   // what the session waits for; not shown as a row
	EventHeartbeat EventKind = "heartbeat" // keeps an idle feed open
)

// Event is one event of a session's timeline. Data and HTTP never contain credentials.
//
// The clocks of browser, instances, store and runtime differ, so At does not order
// events. An event follows those of the same Source with a smaller Seq, and all events
// with one of the IDs in After.
type Event struct {
	At        int64          `json:"at"` // Unix milliseconds, by the clock of the process that reports the event
	Lane      Lane           `json:"lane"`
	To        Lane           `json:"to,omitzero"` // the receiving lane, if any
	Kind      EventKind      `json:"kind"`
	Title     string         `json:"title"`
	SessionID string         `json:"sessionId"`
	Source    string         `json:"source,omitzero"`
	Seq       int64          `json:"seq,omitzero"`
	IDs       []string       `json:"ids,omitzero"`
	After     []string       `json:"after,omitzero"`
	Ms        float64        `json:"ms,omitzero"` // a duration by one clock: time spent in Lane, or the latency of HTTP
	HTTP      *Exchange      `json:"http,omitzero"`
	Data      jsontext.Value `json:"data,omitzero"`
}

// Exchange is an HTTP request, or its response if Status is set.
type Exchange struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Status  int               `json:"status,omitzero"`
	Headers map[string]string `json:"headers,omitzero"`
}

// entryKinds maps kinds of stream entries to the kinds of their events. Others have EventEntry.
var entryKinds = map[wire.EntryKind]EventKind{
	wire.KindFrame: EventFrame, wire.KindSession: EventSession, wire.KindChannelEnded: EventSession,
	wire.KindCommand: EventCommand, wire.KindCommandDenied: EventDenied, wire.KindTimeout: EventTimer,
}

// entryEvent converts an entry of the runtime stream.
func entryEvent(d calls.Delivery) Event {
	e, raw := d.Entry, d.JSON
	if e.Kind == wire.KindChannelData {
		raw = withoutSensitiveData(e)
	}
	event := Event{At: e.At, Lane: LaneService, To: LaneRuntime, Kind: cmp.Or(entryKinds[e.Kind], EventEntry), Title: Title(e), SessionID: e.ChannelID, Data: raw}
	if e.Kind == wire.KindFrame {
		event.Lane = LaneBrowser
	}
	if d.Position != "" { // not audio
		event.Source, event.Seq = sourceEntries, wire.EntryNumber(d.Position)
		event.IDs, event.After = entryCauses(d)
	}
	event.shorten()
	return event
}

// messageEvent converts a message from the runtime to the browser.
func messageEvent(d calls.Delivery) Event {
	e := d.Entry
	event := Event{At: e.At, Lane: LaneRuntime, To: LaneBrowser, Kind: EventFrame, Title: Title(e), SessionID: e.ChannelID, Data: d.JSON}
	if d.Position != "" { // not audio
		event.Source, event.Seq = sourceMessages, wire.EntryNumber(d.Position)
		if m := e.Message; m != nil && m.MessageID != "" {
			event.IDs, event.After = []string{messageRef(m.MessageID)}, []string{sendingRef(m.MessageID)}
		}
	}
	event.shorten()
	return event
}

// Title summarizes an entry in one line.
func Title(e wire.Entry) string {
	switch e.Kind {
	case wire.KindFrame:
		if e.Message != nil {
			return string(e.Message.Type) + payloadTitle(e.Message)
		}
	case wire.KindSession:
		return "browser " + e.Event
	case wire.KindChannelEnded:
		return "ended: " + e.Reason
	case wire.KindCommand, wire.KindCommandDenied:
		switch {
		case e.Command.Command == nil:
		case e.Kind == wire.KindCommand:
			return fmt.Sprintf("command %s, %s", e.Command.Common().Type, e.Apply)
		default:
			return fmt.Sprintf("%s denied: %s", e.Command.Common().Type, e.Reason)
		}
	case wire.KindBotMessage:
		return "bot message: " + e.Text
	case wire.KindBotEvent:
		if e.Parts > 0 {
			return fmt.Sprintf("end of the streamed answer, parts: %d", e.Parts)
		}
		return strings.TrimSpace("bot event " + e.Event + " " + string(e.Value))
	case wire.KindBotOperation:
		return strings.TrimSpace("bot operation " + e.Event + " " + strings.Trim(string(e.Result), `"`))
	case wire.KindLLMPart:
		return "LLM part: " + e.Text
	case wire.KindLLMResult:
		return "LLM result: " + valueOf(e.Content)
	case wire.KindToolResult:
		return "tool result: " + string(e.Result)
	case wire.KindTimeout:
		return string(e.WorkItemKind) + " timed out"
	case wire.KindProviderError:
		return "provider error: " + string(e.Error)
	}
	return string(e.Kind)
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
)

// shorten limits the size of an event. An entry can have 1 MiB.
func (e *Event) shorten() {
	e.Title = truncate(e.Title, maxTitle)
	if len(e.Data) > maxData {
		e.Data = jsontext.Value(fmt.Sprintf(`{"omittedBytes":%d}`, len(e.Data)))
	}
}

// size returns the approximate memory of an event.
func (e *Event) size() int {
	size := 400 + len(e.Title) + len(e.Data)
	if e.HTTP != nil {
		for name, value := range e.HTTP.Headers {
			size += len(name) + len(value)
		}
	}
	return size
}
