package demo

import (
	"slices"
	"time"

	"telapi/callruntime/wire"
)

const (
	playbackStartTimeout = 15 * time.Second // includes the synthesis of speech
	playbackGrace        = 3 * time.Second  // beyond the length of an item
)

// item is an element of the playback queue: speech, a pause or a command.
type item struct {
	speechRequest
	voice   bool // also spoken in chat mode
	comfort bool
	pause   time.Duration
	do      func()
}

// speechRequest is the body of a request for speech. Its settings are those at the
// time the item is queued.
type speechRequest struct {
	Text         string  `json:"text"`
	DisableCache bool    `json:"disableCache,omitzero"`
	Provider     string  `json:"provider,omitzero"`
	Voice        string  `json:"voice,omitzero"`
	Speed        float64 `json:"speed,omitzero"`
	Encoding     string  `json:"encoding"`
	EndpointID   string  `json:"endpointId"` // for usage reports
}

func (i item) from() string {
	if i.comfort {
		return "runtime"
	}
	return "bot"
}

func (c *call) enqueue(i item) {
	i.Provider, i.Voice, i.Speed = valueOf(c.settings.tts.Provider), c.settings.voice, c.settings.rate
	c.queue = append(c.queue, i)
	if len(c.queue) == 1 {
		c.next()
	}
}

// next starts the first item of the queue. If the queue is empty, it ends a call that
// waits for that.
func (c *call) next() {
	if _, busy := c.timers[playback]; busy || c.ended {
		return
	}
	for len(c.queue) > 0 {
		first := c.queue[0]
		if first.do == nil {
			c.after(playback, playbackStartTimeout, c.skipStuck)
			c.effects.play(first)
			return
		}
		c.queue = c.queue[1:]
		first.do()
	}
	if end := c.ending; end != nil {
		c.ending = func() {} // only once
		c.effects.publish("", EventSpeech, "playback finished", nil)
		end()
	}
}

// playing reports that the first item has started and its length.
func (c *call) playing(length time.Duration) { c.after(playback, length+playbackGrace, c.skipStuck) }

// skipStuck skips an item that takes too long.
func (c *call) skipStuck() {
	c.effects.stopPlayback()
	c.played()
}

// played reports the end of the first item.
func (c *call) played() {
	delete(c.timers, playback)
	item := c.queue[0]
	c.queue = c.queue[1:]
	c.silence.playedUntil = c.now()
	if item.comfort {
		c.comfortPlayed()
	} else {
		c.resetSilenceTimers()
	}
	c.next()
}

// interrupt stops playback and removes speech and pauses from the queue. Commands
// stay in order.
func (c *call) interrupt() {
	if len(c.queue) == 0 {
		return
	}
	c.effects.stopPlayback()
	c.effects.send(wire.TypeControl, map[string]string{"command": "stop_playback"})
	delete(c.timers, playback)
	c.queue = slices.DeleteFunc(c.queue, func(i item) bool { return i.do == nil })
	c.silence.playedUntil = c.now()
	c.resetSilenceTimers()
	c.next()
}
