package demo

import (
	"slices"
	"time"

	"telapi/callruntime/wire"
)

const (
	// startLimit is how long an item may take to begin, speech to be made.
	startLimit = 15 * time.Second
	// overrun is how much longer than its length an item may take.
	overrun = 3 * time.Second
)

// item is something that has its place in the order of playback: speech, a
// pause, or a command.
type item struct {
	sentence
	voice   bool // spoken in every mode
	comfort bool
	pause   time.Duration
	do      func()
}

// sentence is what the API server is asked to speak, as it is configured when the
// item is accepted.
type sentence struct {
	Text         string  `json:"text"`
	DisableCache bool    `json:"disableCache,omitzero"`
	Provider     string  `json:"provider,omitzero"`
	Voice        string  `json:"voice,omitzero"`
	Speed        float64 `json:"speed,omitzero"`
	Encoding     string  `json:"encoding"`
	EndpointID   string  `json:"endpointId"` // whom it is counted for
}

func (i item) from() string {
	if i.comfort {
		return "runtime"
	}
	return "bot"
}

func (c *call) enqueue(i item) {
	i.Provider, i.Voice, i.Speed = of(c.settings.tts.Provider), c.settings.voice, c.settings.rate
	c.queue = append(c.queue, i)
	if len(c.queue) == 1 {
		c.next()
	}
}

// next begins what is first in the queue, and ends a call that waits for the
// queue to drain.
func (c *call) next() {
	if _, busy := c.timers[playback]; busy || c.left {
		return
	}
	for len(c.queue) > 0 {
		first := c.queue[0]
		if first.do == nil {
			c.after(playback, startLimit, c.stuck)
			c.hands.play(first)
			return
		}
		c.queue = c.queue[1:]
		first.do()
	}
	if leave := c.leaving; leave != nil {
		c.leaving = func() {} // once
		c.hands.note("", EventSpeech, "playback has drained", nil)
		leave()
	}
}

// playing says that the first item has begun, and how long it takes.
func (c *call) playing(length time.Duration) { c.after(playback, length+overrun, c.stuck) }

// stuck gives an item up that takes too long.
func (c *call) stuck() {
	c.hands.hush()
	c.played()
}

// played says that the first item is over.
func (c *call) played() {
	delete(c.timers, playback)
	was := c.queue[0]
	c.queue = c.queue[1:]
	c.silence.quiet = c.now()
	if was.comfort {
		c.comforted()
	} else {
		c.watchSilence()
	}
	c.next()
}

// interrupt stops what plays and forgets what was to be played. Commands in the
// queue keep their order.
func (c *call) interrupt() {
	if len(c.queue) == 0 {
		return
	}
	c.hands.hush()
	c.hands.send(wire.TypeControl, map[string]string{"command": "stop_playback"})
	delete(c.timers, playback)
	c.queue = slices.DeleteFunc(c.queue, func(i item) bool { return i.do == nil })
	c.silence.quiet = c.now()
	c.watchSilence()
	c.next()
}
