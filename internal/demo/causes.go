package demo

import (
	"fmt"
	"net/http"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// These functions return the IDs with which events refer to earlier events. The page adds
// events with the ID frame:… for the frames that it sends. An ID in After that no event
// has is ignored.
func frameRef(messageID string) string    { return "frame:" + messageID }    // the page has sent a frame
func storedRef(messageID string) string   { return "stored:" + messageID }   // the frame is on the runtime stream; the acknowledgement follows
func entryRef(position string) string     { return "entry:" + position }     // an entry is on the runtime stream
func requestRef(workItemID string) string { return "request:" + workItemID } // the runtime asks the bot
func answerRef(workItemID string) string  { return "answer:" + workItemID }  // the bot posts the callback
func parkedRef(workItemID string) string  { return "parked:" + workItemID }  // the service has parked the callback
func routedRef(callbackID string) string  { return "routed:" + callbackID }  // the callback's entries are on the stream; the receipt follows
func sendingRef(messageID string) string  { return "sending:" + messageID }  // the runtime sends a message
func messageRef(messageID string) string  { return "message:" + messageID }  // the message is in the history; the page receives it later

func heardRef(utterance string) string   { return "heard:" + utterance }   // the caller has spoken
func playingRef(messageID string) string { return "playing:" + messageID } // the runtime starts to play a message

const (
	endingRef = "ending" // the runtime or the page ends the session
	endedRef  = "ended"  // the channel has ended; the socket is closed later
)

// Sources of events other than those of a Hub.
const (
	sourceEntries  = "entries"
	sourceMessages = "messages"
)

// entryCauses returns the references of an event for an entry of the runtime stream: its own
// IDs, and those of the events that come before it.
func entryCauses(d calls.Delivery) (ids, after []string) {
	ids = []string{entryRef(d.Position)}
	switch e := d.Entry; {
	case e.Kind == wire.KindFrame && e.Message != nil:
		ids, after = append(ids, storedRef(e.Message.MessageID)), []string{frameRef(e.Message.MessageID)}
	case e.Kind == wire.KindChannelEnded:
		ids, after = append(ids, endedRef), []string{endingRef}
	case e.WorkItemID != "":
		after = []string{requestRef(e.WorkItemID), answerRef(e.WorkItemID), parkedRef(e.WorkItemID)}
	}
	if d.Entry.CallbackID != "" {
		ids = append(ids, routedRef(d.Entry.CallbackID))
	}
	return ids, after
}

// milliseconds returns the time since start, or 0 if start is zero.
func milliseconds(start time.Time) float64 {
	if start.IsZero() {
		return 0
	}
	return max(float64(time.Since(start).Microseconds())/1000, 0.001)
}

// callbackTokenPlaceholder replaces the token in the commands that the page offers to
// copy.
const callbackTokenPlaceholder = "$CALLBACK_TOKEN"

// headersOf returns the first value of each header of a response.
func headersOf(h http.Header) map[string]string {
	headers := make(map[string]string, len(h))
	for name := range h {
		headers[name] = h.Get(name)
	}
	return headers
}

// record records an event of the runtime that the current entry causes. Only loop's
// goroutine may call it.
func (e *channelEffects) record(event Event, data any) {
	event.SessionID, event.Lane = e.ch.ID, LaneRuntime
	if e.entry != "" {
		event.After, event.Ms = append(event.After, entryRef(e.entry)), milliseconds(e.readAt)
	}
	e.Events.Record(event, data)
}

// markRead records that the runtime has read an entry, and how long it waited for the
// result of a work item. Of a streamed answer, it records the first part.
func (e *channelEffects) markRead(d callruntime.Delivery) {
	e.readAt = time.Now()
	if d.Entry.Part > 1 {
		return
	}
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneRuntime, Kind: EventMark, Title: "reads " + string(d.Entry.Kind),
		After: []string{entryRef(d.Position)}, Ms: milliseconds(e.asked[d.Entry.WorkItemID])}, nil)
	delete(e.asked, d.Entry.WorkItemID)
}

// recordRequest records a request to the bot. The request for a later part follows that
// for the previous one.
func (e *channelEffects) recordRequest(body botRequest) {
	e.asked[body.WorkItemID] = time.Now()
	event := Event{To: LaneBot, Kind: EventHTTP, Title: fmt.Sprintf("request to bot, part %d", body.Part), IDs: []string{requestRef(body.WorkItemID)},
		HTTP: &Exchange{Method: http.MethodPost, URL: e.Bot, Headers: map[string]string{"Content-Type": "application/json"}}}
	switch {
	case body.after != "":
		event.After = []string{requestRef(body.after)}
	case body.utteranceID != "":
		event.After = []string{heardRef(body.utteranceID)}
	}
	body.Callback.Token = callbackTokenPlaceholder
	e.record(event, body)
}
