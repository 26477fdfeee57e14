package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// call is the state of one conversation: what was configured, what plays, whom
// it waits for. It does no I/O: loop tells it what happened, one thing at a
// time, and it tells its hands what to do.
type call struct {
	mode  string
	hands hands
	now   func() time.Time

	settings settings
	timers   map[timer]alarm
	greeted  bool
	queue    []item     // to be played or done; the first is under way
	digits   string     // collected so far
	awaited  []question // that the bot owes an answer to
	silence  silence
	confirm  func() // what the caller is asked to confirm
	leaving  func() // ends the call once playback has drained
	left     bool
}

// hands do what a call decides. What fails with them ends the loop.
type hands interface {
	send(t wire.MessageType, payload any)
	// ask registers a work item and asks the bot, and returns the item's id.
	// The call hears accepted or unreachable.
	ask(q question) string
	cancel(workItemID string)
	// play begins to play an item. The call hears playing and then played,
	// unless hush comes first.
	play(i item)
	hush()
	end(reason string)
	note(to Lane, kind EventKind, title string, data any)
}

// question is what the bot is asked. A bot that announces parts is asked for
// each of them, under a work item of its own.
type question struct {
	Text   string `json:"text,omitzero"`
	DTMF   string `json:"dtmf,omitzero"`
	Part   int    `json:"part"`
	itemID string
}

func newCall(mode string, h hands, now func() time.Time) *call {
	return &call{mode: mode, hands: h, now: now, settings: defaultSettings(), timers: map[timer]alarm{}}
}

const greeting = "Hello, this is the demo bot. Say help to hear what I understand."

// remember takes over what a runtime before this one has dealt with: it changes
// what is configured, and does nothing.
func (c *call) remember(e wire.Entry) {
	switch e.Kind {
	case wire.KindSession:
		c.greeted = true
	case wire.KindCommand:
		c.settings.update(e.Command.Command)
	}
}

// entry is one entry of the stream.
func (c *call) entry(e wire.Entry) {
	c.answered(e.WorkItemID)
	switch e.Kind {
	case wire.KindFrame:
		c.frame(e.Message)
	case wire.KindSession:
		if e.Event == "connected" && !c.greeted {
			c.greeted = true
			c.say(item{sentence: sentence{Text: greeting}})
		}
	case wire.KindBotMessage:
		c.say(item{sentence: sentence{Text: e.Text, DisableCache: e.DisableTTSCache}, voice: e.Form == wire.FormVoice})
	case wire.KindLLMResult:
		c.say(item{sentence: sentence{Text: *e.Content}})
	case wire.KindBotEvent:
		c.botEvent(e)
	case wire.KindCommand:
		c.command(e)
	case wire.KindCommandDenied:
		c.tell(fmt.Sprintf("A %s was denied: %s.", e.Command.Head().Type, e.Reason))
	case wire.KindProviderError:
		c.tell("The bot could not answer. Try something else.")
	case wire.KindTimeout:
		c.tell("The bot did not answer in time. Try something else.")
	case wire.KindChannelEnded:
		c.left = true
		clear(c.timers)
	}
}

func (c *call) frame(m *wire.ChannelMessage) {
	var said struct {
		Text      string `json:"text"`  // of a chat
		Type      string `json:"type"`  // of a browser action
		Digit     string `json:"digit"` // that it pressed
		Name      string `json:"name"`  // of an action that has a result
		Confirmed bool   `json:"confirmed"`
	}
	if payload, _ := m.Payload(); payload == nil || json.Unmarshal(*payload, &said) != nil {
		return
	}
	switch {
	case m.Type == wire.TypeActionResult && said.Name == "confirm":
		c.confirmed(said.Confirmed)
	case c.leaving != nil:
	case m.Type == wire.TypeChat && strings.TrimSpace(said.Text) != "":
		if of(c.settings.dtmf.BargeIn) && int64(len(strings.Fields(said.Text))) >= of(c.settings.dtmf.BargeInMinWordCount) {
			c.interrupt()
		}
		c.ask(question{Text: said.Text, Part: 1})
	case m.Type == wire.TypeBrowserAction && said.Type == "dtmf":
		for _, digit := range said.Digit {
			c.digit(string(digit))
		}
	}
}

// say shows a text to the browser and, where the call is spoken, plays it.
func (c *call) say(i item) {
	spoken := i.voice || c.mode != "chat"
	c.hands.send(wire.TypeChat, chat{Text: i.Text, From: i.from(), Spoken: spoken})
	if spoken {
		c.enqueue(i)
	}
}

// tell shows what the runtime itself has to say.
func (c *call) tell(text string) {
	c.hands.send(wire.TypeChat, chat{Text: text, From: "runtime"})
}

type chat struct {
	Text   string `json:"text"`
	From   string `json:"from"` // bot or runtime
	Spoken bool   `json:"spoken,omitzero"`
}

type status struct {
	Event string         `json:"event"`
	Value jsontext.Value `json:"value,omitzero"`
}

func (c *call) botEvent(e wire.Entry) {
	if e.Event == wire.EventPause {
		var ms float64
		if json.Unmarshal(e.Value, &ms) == nil && ms > 0 {
			c.enqueue(item{pause: time.Duration(min(ms, 10_000) * float64(time.Millisecond))})
		}
		return
	}
	c.hands.send(wire.TypeStatus, status{e.Event, e.Value})
}

// command carries out what the service permitted, when its apply says so, and
// after the caller agreed where the flow insists on that.
func (c *call) command(e wire.Entry) {
	if head := e.Command.Head(); head.RequireConfirmation {
		head.RequireConfirmation = false
		c.confirm = func() { c.command(e) }
		c.after(confirmation, confirmLimit, func() { c.confirmed(false) })
		c.hands.send(wire.TypeAction, map[string]any{"name": "confirm", "command": e.Command})
		return
	}
	switch cmd := e.Command.Command.(type) {
	case *wire.Hangup:
		c.leave(func() { c.after(disconnect, ms(cmd.DelayBotDisconnectMs), func() { c.over("hangup") }) }, "hangup")
	case *wire.Transfer:
		c.leave(func() {
			c.hands.send(wire.TypeAction, transfer{"transfer", cmd.Target, cmd.Message})
			c.over("transferred")
		}, "transfer")
	default:
		if e.Apply == wire.InOrder {
			c.enqueue(item{do: func() { c.settings.update(cmd) }})
			return
		}
		c.settings.update(cmd)
		c.settingsChanged()
	}
}

// confirmed is the caller's answer to the last question of that sort.
func (c *call) confirmed(yes bool) {
	delete(c.timers, confirmation)
	do := c.confirm
	c.confirm = nil
	switch {
	case do == nil:
	case yes:
		do()
	default:
		c.tell("That was not confirmed, so it is not done.")
	}
}

type transfer struct {
	Name    string `json:"name"`
	Target  string `json:"target,omitzero"`
	Message string `json:"message,omitzero"`
}

// settingsChanged lets what is configured take effect on what is under way.
func (c *call) settingsChanged() {
	c.hands.note("", EventCommand, "settings changed at once", nil)
	if c.digits != "" && !of(c.settings.dtmf.Enabled) {
		c.submit()
	}
	c.watchSilence()
}

// leave ends the call once what was accepted for playback has drained. Every
// item is watched, so neither is a sentence cut nor does the call hang on one.
func (c *call) leave(how func(), what string) {
	if c.leaving != nil {
		return
	}
	c.leaving = how
	c.awaited, c.digits = nil, ""
	for _, name := range []timer{interDigit, allDigits, recognition} {
		delete(c.timers, name)
	}
	c.watchSilence()
	if len(c.queue) > 0 {
		c.hands.note("", EventSpeech, what+" waits for playback to drain", nil)
	}
	c.next()
}

func (c *call) over(reason string) {
	if !c.left {
		c.left = true
		clear(c.timers)
		c.hands.end(reason)
	}
}

// ask asks the bot and begins to wait for it.
func (c *call) ask(q question) {
	q.itemID = c.hands.ask(q)
	if len(c.awaited) == 0 {
		c.silence = silence{since: c.now()}
	}
	c.awaited = append(c.awaited, q)
	c.watchSilence()
}

// accepted is the bot's 202: it will answer in so many parts.
func (c *call) accepted(q question, parts int) {
	if q.Part < parts && c.leaving == nil {
		q.Part++
		c.ask(q)
	}
}

// unreachable is anything else.
func (c *call) unreachable(itemID string) {
	c.hands.cancel(itemID)
	c.answered(itemID)
	c.tell("The bot cannot be reached. Try again.")
}

// answered settles a work item: the bot was heard, and silence begins anew if
// it still owes something.
func (c *call) answered(itemID string) {
	at := slices.IndexFunc(c.awaited, func(q question) bool { return q.itemID == itemID })
	if itemID == "" || at < 0 {
		return
	}
	c.awaited = slices.Delete(c.awaited, at, at+1)
	c.silence = silence{since: c.now()}
	c.stopComfort()
	c.watchSilence()
}
