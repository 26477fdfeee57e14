package demo

import (
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/timeline"
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
	text    string
	voice   bool // spoken in every mode
	comfort bool
	noCache bool
	pause   time.Duration
	do      func()

	provider, voiceName string // as configured when it was accepted
	rate                float64
}

func (i item) from() string {
	if i.comfort {
		return "runtime"
	}
	return "bot"
}

func (c *call) enqueue(i item) {
	i.provider, i.voiceName, i.rate = text(c.settings.tts.Provider), c.settings.voice, c.settings.rate
	c.queue = append(c.queue, i)
	if len(c.queue) == 1 {
		c.next()
	}
}

// next begins what is first in the queue, and ends a call that waits for the
// queue to drain.
func (c *call) next() {
	if _, busy := c.timers.due[playback]; busy || c.left {
		return
	}
	for len(c.queue) > 0 {
		first := c.queue[0]
		if first.do == nil {
			c.timers.set(playback, startLimit)
			c.hands.play(first)
			return
		}
		c.queue = c.queue[1:]
		first.do()
	}
	if leave := c.leaving; leave != nil {
		c.leaving = func() {} // once
		c.hands.note("", timeline.Speech, "playback has drained", nil)
		leave()
	}
}

// playing says that the first item has begun, and how long it takes.
func (c *call) playing(length time.Duration) { c.timers.set(playback, length+overrun) }

// played says that the first item is over.
func (c *call) played() {
	delete(c.timers.due, playback)
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
	delete(c.timers.due, playback)
	var commands []item
	for _, i := range c.queue {
		if i.do != nil {
			commands = append(commands, i)
		}
	}
	c.queue = commands
	c.silence.quiet = c.now()
	c.watchSilence()
	c.next()
}
