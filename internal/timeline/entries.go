package timeline

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// lanes says where the kinds of stream entries happen.
var lanes = map[wire.Kind]Event{
	wire.KindFrame:         {Lane: Browser, To: Runtime, Kind: Frame},
	wire.KindSession:       {Lane: Service, To: Runtime, Kind: Session},
	wire.KindChannelEnded:  {Lane: Service, To: Runtime, Kind: Session},
	wire.KindCommand:       {Lane: Service, To: Runtime, Kind: Command},
	wire.KindCommandDenied: {Lane: Service, To: Runtime, Kind: Denied},
	wire.KindTimeout:       {Lane: Service, To: Runtime, Kind: Timer},
}

// OfEntry is an entry of the runtime's stream as an event.
func OfEntry(e wire.Entry, raw jsontext.Value) Event {
	event, ok := lanes[e.Kind]
	if !ok {
		event = Event{Lane: Service, To: Runtime, Kind: Entry}
	}
	if e.Kind == wire.KindChannelData {
		raw = withoutSensitive(e)
	}
	event.At, event.SessionID, event.Title, event.Data = e.At, e.ChannelID, Title(e), raw
	return event
}

// ToBrowser is a message of the runtime to the browser as an event.
func ToBrowser(e wire.Entry, raw jsontext.Value) Event {
	event := OfEntry(e, raw)
	event.Lane, event.To = Runtime, Browser
	return event
}

// Title says in words what an entry is about.
func Title(e wire.Entry) string {
	switch {
	case e.Kind == wire.KindFrame && e.Message != nil:
		return string(e.Message.Type) + said(e.Message)
	case e.Kind == wire.KindCommand && e.Command.Command != nil:
		return fmt.Sprintf("command %s, %s", e.Command.Head().Type, e.Apply)
	case e.Kind == wire.KindCommandDenied && e.Command.Command != nil:
		return fmt.Sprintf("%s denied: %s", e.Command.Head().Type, e.Reason)
	case e.Kind == wire.KindLLMResult && e.Content != nil:
		return "the model says: " + *e.Content
	}
	switch e.Kind {
	case wire.KindSession:
		return "browser " + e.Event
	case wire.KindChannelEnded:
		return "ended: " + e.Reason
	case wire.KindBotMessage:
		return "the bot says: " + e.Text
	case wire.KindBotEvent:
		return strings.TrimSpace("bot event " + e.Event + " " + string(e.Value))
	case wire.KindToolResult:
		return "the tool returns: " + string(e.Result)
	case wire.KindTimeout:
		return "no answer of the " + e.WorkItemKind + " in time"
	case wire.KindProviderError:
		return "the provider failed: " + string(e.Error)
	default:
		return string(e.Kind)
	}
}

// said is the text of a chat, or the name of an event, after a colon.
func said(m *wire.ChannelMessage) string {
	payload, _ := m.Payload()
	var known struct {
		Text, Event, Command, Type, Name any
	}
	if payload != nil {
		_ = json.Unmarshal(*payload, &known, json.MatchCaseInsensitiveNames(true)) // free-form: any other shape has no title
	}
	for _, part := range []any{known.Text, known.Event, known.Command, known.Type, known.Name} {
		if s, ok := part.(string); ok {
			return ": " + s
		}
	}
	return ""
}

// withoutSensitive hides what its provider marked.
func withoutSensitive(e wire.Entry) jsontext.Value {
	for i, d := range e.ChannelData {
		if d.SensitiveData != nil && *d.SensitiveData {
			e.ChannelData[i].Value = jsontext.Value(`"[hidden]"`)
		}
	}
	raw, _ := json.Marshal(e) // it was decoded from JSON
	return raw
}
