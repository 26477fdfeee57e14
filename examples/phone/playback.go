package main

import (
	"slices"
	"strings"

	"telapi/callruntime/wire"

	"example.com/phone/media"
)

const maxQueue = 200 // items

// item is an element of the playback queue: speech, audio or a command that has to wait
// for its turn.
type item struct {
	text    string
	noCache bool
	address string // of audio
	execute func()
	comfort bool // a comfort prompt

	frames    []media.Frame // all when ready; before, those that follow the text or address
	requested bool          // the audio of the text or address
	ready     bool          // the frames are complete
	started   bool
	err       error // why the audio is missing
}

// sounds reports whether barge-in removes the item.
func (i *item) sounds() bool { return i.execute == nil }

// say shows and speaks a text.
func (c *call) say(i *item) {
	if i.text = strings.TrimSpace(i.text); i.text == "" {
		return
	}
	from := "bot"
	if i.comfort {
		from = "runtime"
	}
	c.show(wire.TypeChat, map[string]any{"text": i.text, "from": from, "spoken": true})
	c.enqueue(i)
}

// enqueue adds an item. A bot that sends too much is not spoken.
func (c *call) enqueue(i *item) {
	if len(c.queue) >= maxQueue {
		c.log.Warn("item dropped: playback queue is full")
		return
	}
	c.queue = append(c.queue, i)
}

// play goes on with the queue as far as it can. Speech waits while the caller speaks. When
// the queue is empty, a hangup or transfer that waited for it starts.
func (c *call) play() {
	for len(c.queue) > 0 {
		for _, next := range c.queue[:min(2, len(c.queue))] {
			if !next.sounds() { // it may change the voice
				break
			}
			c.fetch(next)
		}
		first := c.queue[0]
		switch {
		case len(c.leg.audio.Queue) > 0:
			return
		case first.execute != nil:
			c.queue = c.queue[1:]
			first.execute()
		case first.started:
			c.queue = c.queue[1:]
			c.played(first)
		case !first.ready || c.speaking:
			return
		default:
			first.started = true
			c.leg.audio.Queue = first.frames
		}
	}
	if end := c.ending; end != nil && len(c.leg.audio.Queue) == 0 {
		c.ending = func() {} // only once
		end()
	}
}

// fetch requests the audio of an item, once.
func (c *call) fetch(i *item) {
	if i.requested {
		return
	}
	i.requested, i.ready = true, i.text == "" && i.address == ""
	if i.ready {
		return
	}
	request, settings := *i, c.settings
	c.tasks.Go(func() {
		audio, err := c.phone.audio(c.ctx, request, settings)
		c.post(func() { i.ready, i.err, i.frames = true, err, append(media.Frames(audio), i.frames...) })
	})
}

func (c *call) played(i *item) {
	c.after("comfort", ms(c.settings.BotNoInputTimeoutMs), c.comfort)
	status := map[string]any{"event": "playback", "state": "played"}
	if i.err != nil {
		status["state"], status["reason"] = "failed", i.err.Error()
	}
	c.status(status)
	s := c.settings
	if i.comfort && s.ResumeRecognitionTimeoutMs > 0 && !c.leaving() {
		c.after("recognition", ms(s.ResumeRecognitionTimeoutMs), func() {
			c.status(map[string]any{"event": "recognition_resumed"})
			c.say(&item{text: s.ResumeRecognitionSpeech})
		})
	}
}

// interrupt stops playback and removes what was queued. Commands stay.
func (c *call) interrupt(cause string) {
	if !slices.ContainsFunc(c.queue, (*item).sounds) {
		return
	}
	c.stopFirst()
	c.queue = slices.DeleteFunc(c.queue, (*item).sounds)
	c.after("comfort", ms(c.settings.BotNoInputTimeoutMs), c.comfort)
	c.status(map[string]any{"event": "playback", "state": "interrupted", "by": cause})
}

// stopFirst stops the first item of the queue. Digits, whose command has left the queue, are still sent.
func (c *call) stopFirst() {
	if c.queue[0].started {
		c.leg.audio.Queue = nil
	}
}
