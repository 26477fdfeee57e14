package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/emiago/sipgo/sip"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"

	"example.com/phone/media"
)

const (
	maxWork    = 256                    // events, messages and questions that wait
	maxLag     = 100 * time.Millisecond // of audio that is sent late; more is skipped
	maxPause   = 10_000.0               // ms
	endTimeout = 5 * time.Second
)

// call is one conversation: a SIP leg and a channel of telapi. One goroutine, run, owns
// its state and handles a frame of audio every 20 ms. Everything that waits runs in a
// task of its own and posts its result.
type call struct {
	phone   *Phone
	leg     *leg
	channel *callruntime.Channel
	log     *slog.Logger

	ctx     context.Context // ends with the call
	stop    context.CancelFunc
	sending context.Context // of messages, which outlive the call for a moment
	tasks   sync.WaitGroup
	events  chan func() // for run
	// Work that is done in order, one function at a time.
	messages, questions chan func()

	settings settings
	context  map[string]jsontext.Value // of set_context
	timers   map[string]timer
	frameAt  time.Time // when the next frame is due
	queue    []*item   // what is played

	listener media.Listener
	muted    bool   // voice input is off
	input    int    // counts how often voice input was cleared
	speaking bool   // the caller speaks
	digits   string // collected so far

	pending []string // work items without an answer
	prompts int64    // comfort prompts since the last question or answer

	confirm  func(yes bool) // the command that waits for the caller's confirmation
	ending   func()         // what happens when the queue is empty: hangup or transfer
	other    *leg           // the leg to which the call is connected
	relayed  []byte         // the last frame of other
	reason   string         // why the call has ended; empty: it goes on
	farewell []sip.Header   // of the BYE
}

// timer is something that happens later.
type timer struct {
	at time.Time
	do func()
}

// run handles everything that happens until the call ends. It owns all goroutines of the
// call.
func (c *call) run() {
	var stopSending context.CancelFunc
	c.sending, stopSending = context.WithCancel(context.WithoutCancel(c.ctx))
	defer stopSending()
	for _, work := range []chan func(){c.messages, c.questions} {
		c.tasks.Go(func() {
			for f := range work {
				f()
			}
		})
	}
	c.tasks.Go(func() {
		err := c.phone.receive(c.sending, c.channel, func(e wire.Entry) { c.post(func() { c.handle(e) }) })
		if err != nil {
			c.log.Warn("channel lost", "error", err)
			c.post(func() { c.channelEnded("channel_lost", "service unavailable", 41) })
		}
	})
	c.status(map[string]any{"event": "call", "state": "answered", "from": c.leg.remote})
	help := "Say help to hear what I understand."
	if c.phone.config.STTURL == "" {
		help = "I repeat what you say."
	}
	c.say(&item{text: "Hello, this is the demo bot. " + help})
	c.loop()
	c.stop()
	c.leg.hangUp(c.farewell)
	if c.other != nil {
		c.other.hangUp(nil)
	}
	c.status(map[string]any{"event": "call", "state": "ended", "reason": c.reason})
	c.endChannel(c.reason)
	close(c.messages)
	close(c.questions)
	defer time.AfterFunc(endTimeout, stopSending).Stop()
	c.tasks.Wait()
}

func (c *call) loop() {
	ticker := time.NewTicker(media.FrameDuration)
	defer ticker.Stop()
	c.frameAt = time.Now()
	for c.reason == "" {
		var otherDone <-chan struct{}
		if c.other != nil {
			otherDone = c.other.dialog.Context().Done()
		}
		select {
		case event := <-c.events:
			event()
		case <-ticker.C:
			c.tick(time.Now())
		case <-c.leg.dialog.Context().Done():
			c.end("caller_hangup")
		case <-otherDone:
			c.end("transferred", reasonHeader("", 16))
		case <-c.ctx.Done():
			c.end("shutdown", reasonHeader("shutdown", 31))
		}
	}
}

// tick handles what is due: frames, timers and playback.
func (c *call) tick(now time.Time) {
	if latest := now.Add(-maxLag); c.frameAt.Before(latest) {
		c.frameAt = latest
	}
	for ; !c.frameAt.After(now); c.frameAt = c.frameAt.Add(media.FrameDuration) {
		c.frame()
	}
	for name, t := range c.timers {
		if now.After(t.at) {
			delete(c.timers, name)
			t.do()
		}
	}
	c.play()
	if c.leg.audio.Quiet() > c.phone.config.MediaTimeout {
		c.end("media_timeout", reasonHeader("no audio", 102))
	}
}

// frame handles 20 ms of audio: the bot hears them, or the leg to which the call is
// connected.
func (c *call) frame() {
	heard, digits := c.leg.audio.Tick(c.relayed)
	if c.other == nil {
		c.hear(heard)
		for _, digit := range digits {
			c.pressed(string(digit))
		}
		return
	}
	var back string
	c.relayed, back = c.other.audio.Tick(heard)
	_ = c.other.audio.Press(digits) // the other side may not support them
	_ = c.leg.audio.Press(back)
}

// leaving reports whether the bot is not asked any more.
func (c *call) leaving() bool { return c.ending != nil || c.other != nil }

// end ends the call. The BYE has the headers.
func (c *call) end(reason string, headers ...sip.Header) {
	if c.reason == "" {
		c.reason, c.farewell = reason, headers
	}
}

// post passes a function to run. It reports false if the call has ended.
func (c *call) post(f func()) bool {
	select {
	case c.events <- f:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// later adds work, unless there is too much of it.
func (c *call) later(work chan func(), f func()) bool {
	select {
	case work <- f:
		return true
	default:
		c.log.Warn("request dropped: telapi, the bot or the recognizer is too slow")
		return false
	}
}

// after starts or restarts a timer.
func (c *call) after(name string, d time.Duration, f func()) {
	c.timers[name] = timer{time.Now().Add(d), f}
}

// channelEnded ends a call that telapi no longer knows, unless it is connected to another.
func (c *call) channelEnded(reason, text string, cause int) {
	if c.other == nil {
		c.end(reason, reasonHeader(text, cause))
	}
}

// endChannel ends the channel after the messages so far.
func (c *call) endChannel(reason string) {
	c.later(c.messages, func() {
		if err := c.channel.End(c.sending, reason); err != nil && !errors.Is(err, callruntime.ErrEnded) {
			c.log.Warn("channel not ended", "error", err)
		}
	})
}

// handle handles one entry.
func (c *call) handle(e wire.Entry) {
	c.answered(e.WorkItemID, e.Part == 0)
	switch e.Kind {
	case wire.KindBotMessage:
		c.say(&item{text: e.Text, noCache: e.DisableTTSCache})
	case wire.KindBotEvent:
		var pause float64
		if e.Event == wire.EventPause && json.Unmarshal(e.Value, &pause) == nil && pause > 0 {
			audio := media.Silence(time.Duration(min(pause, maxPause)) * time.Millisecond)
			c.enqueue(&item{frames: media.Frames(audio)})
		}
	case wire.KindCommand:
		c.command(e)
	case wire.KindCommandDenied:
		c.commandResult(e.Command.Common(), fmt.Errorf("denied: %s", e.Reason))
	case wire.KindProviderError, wire.KindTimeout:
		c.say(&item{text: "The bot could not answer. Please try something else."})
	case wire.KindChannelEnded:
		c.channelEnded("channel_ended", e.Reason, 16)
	}
}

// status reports what happened on the line. The log has no digits: they may be a PIN.
func (c *call) status(content map[string]any) {
	c.show(wire.TypeStatus, content)
	var attributes []any
	for _, name := range []string{"type", "method", "state", "result", "status", "reason"} {
		if value, ok := content[name]; ok {
			attributes = append(attributes, name, value)
		}
	}
	c.log.Info(fmt.Sprint(content["event"]), attributes...)
}

// show adds a message to the channel's history.
func (c *call) show(t wire.MessageType, content map[string]any) {
	m := wire.ChannelMessage{Type: t}
	payload, _ := m.Payload()
	*payload, _ = json.Marshal(content, json.Deterministic(true)) // it has strings, numbers and JSON
	c.later(c.messages, func() {
		if err := c.channel.Send(c.sending, m); err != nil && !errors.Is(err, callruntime.ErrEnded) {
			c.log.Warn("message not sent", "error", err)
		}
	})
}

// The state directory has an empty file for each channel of a live call. After a crash
// the calls are gone, but their channels stay open until they are idle for a day; the
// next start ends them.
func (p *Phone) recordChannel(channelID string) error {
	return errors.Join(os.MkdirAll(p.config.StateDir, 0o700), os.WriteFile(filepath.Join(p.config.StateDir, channelID), nil, 0o600))
}

// receive handles the entries of a channel until it has ended. They are committed at once:
// a call cannot move to another process, so that nobody needs them again.
func (p *Phone) receive(ctx context.Context, channel *callruntime.Channel, handle func(wire.Entry)) error {
	for {
		d, err := channel.Receive(ctx)
		switch {
		case errors.Is(err, callruntime.ErrEnded) || errors.Is(err, callruntime.ErrClosed):
			return os.Remove(filepath.Join(p.config.StateDir, channel.ID))
		case errors.Is(err, callruntime.ErrLost): // entries that were not committed arrive again
			continue
		case err == nil:
			handle(d.Entry)
		case d.Position == "": // with a position, the entry cannot be decoded and is skipped
			return err
		}
		_ = channel.Commit(ctx, d.Position) // Receive reports a lost claim
	}
}

// endOldChannels ends the channels that an earlier process has left.
func (p *Phone) endOldChannels() {
	files, _ := os.ReadDir(p.config.StateDir) // a missing directory has none
	for _, file := range files {
		ctx, cancel := context.WithTimeout(p.ctx, endTimeout)
		channel, err := p.runtime.Open(ctx, file.Name(), wire.Open{Endpoint: p.config.Endpoint, Mode: "audio"})
		if err == nil {
			err = channel.End(ctx, "runtime_restarted")
		}
		switch {
		case err == nil:
			err = p.receive(ctx, channel, func(wire.Entry) {})
		case errors.Is(err, callruntime.ErrEnded):
			err = os.Remove(filepath.Join(p.config.StateDir, file.Name()))
		}
		cancel()
		p.log.Info("ended the channel of a call before the restart", "channel", file.Name(), "error", err)
	}
}
