package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// call is the state machine of one conversation. It does no I/O itself: loop calls
// its methods, one at a time, and they call effects.
type call struct {
	mode    string
	effects effects
	now     func() time.Time

	settings settings
	timers   map[timer]deadline
	greeted  bool
	queue    []item          // to be played or executed; the first one is playing
	digits   string          // collected so far
	pending  []string        // work items of questions that the bot has not answered yet
	answered map[string]bool // work items
	silence  silence
	ownBot   bool // the bot is the user's
	echo     bool // repeat the speech of the caller: no speech recognition is configured
	speaking bool // the caller speaks; playback waits
	listener listener
	webrtc   struct { // the page's WebRTC call within the conversation
		open      bool
		callID    string // if the page has given it one
		connected bool   // so that the caller hears speech
	}
	stream    openAnswer
	cancelled string // work item of the last streamed answer that the caller interrupted
	sentences int    // of all answers that arrived word by word
	confirm   func() // executes the command that awaits the caller's confirmation
	ending    func() // ends the call when the queue is empty
	ended     bool
}

// effects does the I/O of a call. A failure ends the loop.
type effects interface {
	// markRead records that the call handles an entry now.
	markRead(d callruntime.Delivery)
	// send sends a message to the browser and returns its ID.
	send(t wire.MessageType, payload any) string
	// askBot creates a work item, sends the question in the background and returns
	// the item's ID. Later it calls botAccepted or botFailed of the call.
	askBot(q question) string
	cancel(workItemID string)
	// play starts to play an item. Later it calls playing and then played of the
	// call, unless stopPlayback is called first.
	play(i item)
	stopPlayback()
	// publishSpeaking and publishUtterance publish when the caller starts and stops speaking.
	publishSpeaking()
	publishUtterance(u utterance)
	// recognize converts an utterance to text. Later it calls recognized or
	// recognitionFailed of the call.
	recognize(u utterance)
	// answer answers a WebRTC offer. It replaces an earlier call. Later it calls
	// webrtcConnected and webrtcEnded of the call.
	answer(offer signal) error
	addCandidate(candidate jsontext.Value)
	closeWebRTC()
	end(reason string)
	publish(kind EventKind, title string)
}

// question is a question to the bot. If the answer has several parts, the bot is
// asked for each one, with a separate work item.
type question struct {
	Text        string `json:"text,omitzero"`
	DTMF        string `json:"dtmf,omitzero"`
	Part        int    `json:"part"`
	itemID      string // of its work item; empty: a new one
	after       string // the work item of the previous part, if any
	utteranceID string // if the caller has spoken
}

func newCall(mode string, e effects, now func() time.Time) *call {
	c := &call{mode: mode, effects: e, now: now, settings: defaultSettings, timers: map[timer]deadline{}, answered: map[string]bool{}}
	c.listener = listener{maxLength: maxRecognized, started: c.speechStarted, ended: c.speechEnded}
	return c
}

const confirmationTimeout = 30 * time.Second

const (
	greeting     = "Hello, this is the demo bot. Say help to hear what I understand."
	echoGreeting = "Hello, this is the demo bot. I repeat what you say. Type help to see what I understand."
	// The user's bot has greetings of its own: these only say that the call is connected.
	ownBotGreeting     = "Connected. Your bot answers what you say."
	ownBotEchoGreeting = "Connected. I repeat what you say. Your bot answers what you type."
)

// resume continues a call. An earlier runtime may have committed entries. Its questions
// are still open, and the connection of a WebRTC call has ended with it.
func (c *call) resume(committed bool, open []wire.OpenWorkItem) {
	for _, item := range open {
		if item.Scope == wire.ScopeItem {
			c.await(item.WorkItemID)
		}
	}
	c.greeted = committed
	if committed && c.mode == "webrtc" {
		c.effects.send(wire.TypeControl, signal{Command: webrtcEnd, Reason: "Another runtime has taken over the session.", Retry: true})
	}
}

// needsEntries returns whether the entries so far are needed to restore the call, not
// counting those with the words of an unfinished sentence.
func (c *call) needsEntries() bool {
	return !c.ended && (len(c.pending) > 0 || c.digits != "" || c.confirm != nil || c.ending != nil || c.settings.changed)
}

func (c *call) handleEntry(e wire.Entry) {
	if !arrivesByWord(e) {
		c.removePending(e.WorkItemID)
	}
	c.endStreamAt(e)
	switch e.Kind {
	case wire.KindFrame:
		c.handleFrame(e.Message)
	case wire.KindSession:
		if e.Event == "connected" && !c.greeted {
			c.greeted = true
			c.say(item{speechRequest: speechRequest{Text: c.greeting()}}) // in mode webrtc it is spoken when the call is connected
		}
	case wire.KindBotMessage, wire.KindLLMPart:
		c.sayAnswer(e)
	case wire.KindLLMResult:
		if e.Parts == 0 { // otherwise its parts were said
			c.say(item{speechRequest: speechRequest{Text: *e.Content}})
		}
	case wire.KindBotEvent:
		c.handleBotEvent(e)
	case wire.KindCommand:
		c.handleCommand(e)
	case wire.KindCommandDenied:
		c.notify(fmt.Sprintf("A %s was denied: %s.", e.Command.Common().Type, e.Reason))
	case wire.KindProviderError:
		c.notify("The bot could not answer" + errorMessage(e.Error) + ". Try something else.")
	case wire.KindTimeout:
		c.notify("The bot did not answer in time. Try something else.")
	case wire.KindChannelEnded:
		c.ended = true
		clear(c.timers)
	}
}

func (c *call) handleFrame(m *wire.ChannelMessage) {
	switch m.Type {
	case wire.TypeAudio:
		c.handleAudio(m)
		return
	case wire.TypeControl:
		c.handleControl(m)
		return
	}
	var content struct {
		Text      string `json:"text"`  // of a chat
		Type      string `json:"type"`  // of a browser action
		Digit     string `json:"digit"` // of a browser action of type dtmf
		Name      string `json:"name"`  // of an action result
		Confirmed bool   `json:"confirmed"`
	}
	if payload, _ := m.Payload(); payload == nil || json.Unmarshal(*payload, &content) != nil {
		return
	}
	switch {
	case m.Type == wire.TypeActionResult && content.Name == "confirm":
		c.confirmed(content.Confirmed)
	case c.ending != nil:
	case m.Type == wire.TypeChat && strings.TrimSpace(content.Text) != "":
		c.handleText(content.Text, "")
	case m.Type == wire.TypeBrowserAction && content.Type == "dtmf":
		for _, digit := range content.Digit {
			c.handleDigit(string(digit))
		}
	}
}

// handleText handles a text that the caller typed, or said in an utterance.
func (c *call) handleText(text, utteranceID string) {
	if c.settings.BargeIn && int64(len(strings.Fields(text))) >= c.settings.BargeInMinWordCount {
		c.interrupt()
	}
	c.ask(question{Text: text, Part: 1, utteranceID: utteranceID})
}

// isSpoken returns whether the caller hears an item. In mode webrtc that needs a connected
// call.
func (c *call) isSpoken(i item) bool {
	return c.webrtc.connected || c.mode == "audio" || c.mode == "chat" && i.voice
}

// say sends a text to the browser and, if it is spoken, plays it.
func (c *call) say(i item) {
	spoken := c.isSpoken(i)
	from := "bot"
	if i.comfort {
		from = "runtime"
	}
	i.messageID = c.effects.send(wire.TypeChat, chat{Text: i.Text, From: from, Spoken: spoken, answerPart: i.answer})
	if spoken && i.Text != "" {
		c.enqueue(i)
	}
}

// notify sends a text of the runtime to the browser.
func (c *call) notify(text string) {
	c.effects.send(wire.TypeChat, chat{Text: text, From: "runtime"})
}

type chat struct {
	Text   string `json:"text"`
	From   string `json:"from"` // bot or runtime; caller for recognized speech
	Spoken bool   `json:"spoken,omitzero"`
	answerPart
}

type status struct {
	Event string         `json:"event"`
	Value jsontext.Value `json:"value,omitzero"`
}

func (c *call) handleBotEvent(e wire.Entry) {
	if e.Parts > 0 { // the end of a streamed answer
		return
	}
	if e.Event == wire.EventPause {
		var pause float64 // milliseconds
		if json.Unmarshal(e.Value, &pause) == nil && pause > 0 {
			c.enqueue(item{pause: time.Duration(min(pause, 10_000) * float64(time.Millisecond))})
		}
		return
	}
	c.effects.send(wire.TypeStatus, status{e.Event, e.Value})
}

// handleCommand executes an allowed command at the time given by its apply member,
// and after the caller's confirmation if the policy requires it.
func (c *call) handleCommand(e wire.Entry) {
	if head := e.Command.Common(); head.RequireConfirmation {
		head.RequireConfirmation = false
		c.confirm = func() { c.handleCommand(e) }
		c.after(confirmation, confirmationTimeout, func() { c.confirmed(false) })
		c.effects.send(wire.TypeAction, map[string]any{"name": "confirm", "command": e.Command})
		return
	}
	switch cmd := e.Command.Command.(type) {
	case *wire.Hangup:
		c.endAfterPlayback("hangup", func() { c.after(disconnect, ms(valueOf(cmd.DelayBotDisconnectMs)), func() { c.end("hangup") }) })
	case *wire.Transfer:
		c.endAfterPlayback("transfer", func() {
			c.effects.send(wire.TypeAction, struct {
				Name    string `json:"name"`
				Target  string `json:"target,omitzero"`
				Message string `json:"message,omitzero"`
			}{"transfer", cmd.Target, cmd.Message})
			c.end("transferred")
		})
	case *wire.EmitEvent:
		if cmd.Event == wire.EnableTextChat || cmd.Event == wire.DisableTextChat {
			c.enqueue(item{execute: func() { c.effects.send(wire.TypeControl, map[string]string{"command": cmd.Event}) }})
		}
	default:
		if e.Apply == wire.ApplyInOrder {
			c.enqueue(item{execute: func() { c.settings.update(cmd) }})
			return
		}
		c.settings.update(cmd)
		c.effects.publish(EventCommand, "settings changed")
		if c.digits != "" && !c.settings.Enabled {
			c.submit()
		}
		c.resetSilenceTimers()
	}
}

func (c *call) confirmed(yes bool) {
	delete(c.timers, confirmation)
	execute := c.confirm
	c.confirm = nil
	switch {
	case execute == nil:
	case yes:
		execute()
	default:
		c.notify("Not confirmed. The command was cancelled.")
	}
}

// endAfterPlayback calls end when the queue is empty. Every item has a timeout, so
// speech cannot block the end forever.
func (c *call) endAfterPlayback(command string, end func()) {
	if c.ending != nil {
		return
	}
	c.ending = end
	c.pending, c.digits, c.speaking = nil, "", false
	for _, name := range []timer{interDigit, allDigits, recognition} {
		delete(c.timers, name)
	}
	c.resetSilenceTimers()
	if len(c.queue) > 0 {
		c.effects.publish(EventSpeech, command+" waits for playback to finish")
	}
	c.startNext()
}

func (c *call) end(reason string) {
	if !c.ended {
		c.ended = true
		clear(c.timers)
		c.endWebRTC(signal{Reason: reason})
		c.effects.end(reason)
	}
}

// ask sends a question to the bot and starts the timers for its answer.
func (c *call) ask(q question) {
	c.await(c.effects.askBot(q))
}

func (c *call) await(itemID string) {
	if len(c.pending) == 0 {
		c.silence = silence{since: c.now()}
	}
	if !slices.Contains(c.pending, itemID) {
		c.pending = append(c.pending, itemID)
	}
	c.resetSilenceTimers()
}

// botAccepted handles the bot's 202 response with the number of parts of its answer. The
// next part may have been answered to an earlier runtime.
func (c *call) botAccepted(q question, parts int) {
	if next := q.next(); q.Part < parts && c.ending == nil && !c.answered[next.itemID] {
		c.ask(next)
	}
}

// next returns the question for the next part of the answer. The ID of its work item is
// derived from that of this part.
func (q question) next() question {
	q.Part++
	q.after = q.itemID
	q.itemID = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, q.itemID, " ", q.Part)).String()
	return q
}

// botFailed handles any other response and a failed request.
func (c *call) botFailed(itemID, reason string) {
	c.effects.cancel(itemID)
	c.removePending(itemID)
	c.notify(reason + " Try again.")
}

// removePending removes the question of a work item from the pending ones, if it is
// there, and restarts the silence timers.
func (c *call) removePending(itemID string) {
	if itemID == "" {
		return
	}
	c.answered[itemID] = true
	at := slices.Index(c.pending, itemID)
	if at < 0 {
		return
	}
	c.pending = slices.Delete(c.pending, at, at+1)
	c.silence = silence{since: c.now()}
	c.stopComfort()
	c.resetSilenceTimers()
}
